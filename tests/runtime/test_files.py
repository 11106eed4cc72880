"""A file is whole or not there."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from medddpm.errors import BadInput
from medddpm.runtime.files import check_writable, replacing


def test_a_block_that_ends_well_replaces_the_file(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "a.nii.gz"
    for content in ("one", "two"):
        with replacing(path) as temporary:
            assert temporary.parent == path.parent
            assert temporary.name.endswith("a.nii.gz")
            temporary.write_text(content)
        assert path.read_text() == content
    assert [p.name for p in path.parent.iterdir()] == ["a.nii.gz"]


def test_the_file_has_the_rights_of_any_new_file(tmp_path: Path) -> None:
    with replacing(tmp_path / "a") as temporary:
        temporary.write_text("")
    (tmp_path / "b").write_text("")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, "full"), "no room left"),
        (OSError(errno.EROFS, "read-only"), "may not be written"),
        (ValueError("a bug"), None),
        (OSError(errno.EIO, "a broken disk"), None),
    ],
)
def test_a_block_that_fails_leaves_the_old_file(tmp_path: Path, error: Exception, told: str | None) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def write() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(BadInput if told else type(error), match=told):
        write()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_what_cannot_be_written_is_known_beforehand(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "a")
    assert os.listdir(tmp_path / "new") == []
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="a file stands where its folder should be"):
        check_writable(tmp_path / "file" / "a")
