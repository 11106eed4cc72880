"""Files that are either whole or not there: written beside their place, flushed, then moved into it."""

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

    The temporary name keeps the whole suffix of `path` (``.nii.gz``), for writers that go by it. A block that
    fails, or a process that is killed, leaves what stood at `path` as it was; a full disk, a read-only folder or
    a missing right becomes a `BadInput`.
    """
    path = Path(path)
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".writing-", suffix="-" + path.name, dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        with open(temporary, "rb+") as stream:
            os.fsync(stream.fileno())
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # mkstemp makes files for the owner alone
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise BadInput(path, "no room left to write it", "free some space and run the same command again") from None
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise BadInput(
                path, "may not be written", "choose another folder, or ask for the right to write here"
            ) from None
        if error.errno in (errno.ENOTDIR, errno.EEXIST):
            raise BadInput(path, "a file stands where its folder should be", "choose another place") from None
        raise
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
