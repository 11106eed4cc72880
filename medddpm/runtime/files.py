"""Files that are either whole or absent: written beside their place, flushed, then moved into it."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from medddpm.errors import BadInput


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a temporary path in `path`'s folder; moves it over `path` once the block has ended well.

    The temporary name keeps the whole suffix of `path` (``.nii.gz``), for writers that read the format from it. A block
    that fails, or a process that is killed, leaves the old file at `path` as it was.

    Raises:
        BadInput: the disk is full, the folder read-only or a permission missing.
    """
    path = Path(path)
    temporary: Path | None = None
    try:
        with _named_failures(path):
            temporary = _beside(path)
            yield temporary
            with open(temporary, "rb+") as stream:
                os.fsync(stream.fileno())
            mask = os.umask(0)
            os.umask(mask)
            temporary.chmod(0o666 & ~mask)  # mkstemp makes files for the owner alone
            os.replace(temporary, path)
            temporary = None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Checks, before long work, that its result can be written to `path`.

    Raises:
        BadInput: it cannot.
    """
    with _named_failures(Path(path)):
        _beside(Path(path)).unlink()


def _beside(path: Path) -> Path:
    """Makes an empty file in the folder of `path`, and that folder where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".writing-", suffix="-" + path.name, dir=path.parent)
    os.close(handle)
    return Path(name)


@contextlib.contextmanager
def _named_failures(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            problem, remedy = "no room left to write it", "free some space and run the same command again"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            problem, remedy = "may not be written", "choose another folder, or ask for permission to write here"
        elif error.errno in (errno.ENOTDIR, errno.EEXIST):
            problem, remedy = "a file stands where its folder should be", "choose another place"
        else:
            raise
        raise BadInput(path, problem, remedy) from None
