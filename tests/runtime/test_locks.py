"""The lock of a folder, on file systems that have none too."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from medddpm.errors import BadInput
from medddpm.runtime import locks


def locked(folder: Path):
    return locks.locked(folder, folder / "given", "measuring", "wait for it")


def test_the_folder_is_made_and_the_lock_is_free_after_an_error(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(KeyError), locked(tmp_path / "a" / "b"):
            raise KeyError
    assert (tmp_path / "a" / "b" / locks.LOCK).read_text() == str(os.getpid())


def test_who_holds_it_is_named_beside_what_the_user_gave(tmp_path: Path) -> None:
    line = f"{tmp_path}/given: process {os.getpid()} is measuring there; wait for it"
    with locked(tmp_path), pytest.raises(BadInput, match=f"^{line}$"), locked(tmp_path):
        pass


def test_another_programs_lock_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / locks.LOCK).write_bytes(b"\xff not ours")
    with pytest.raises(BadInput, match=r"\.lock: it is another program's; choose another folder"), locked(tmp_path):
        pass
    assert (tmp_path / locks.LOCK).read_bytes() == b"\xff not ours"


def test_a_file_system_without_locks_keeps_nobody_from_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(tmp_path), locked(tmp_path):
        pass
