"""Writes files that are either whole or absent, and reads files without trusting their size."""

from __future__ import annotations

import contextlib
import errno
import functools
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import stat
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from medddpm.errors import BadInput

LARGEST_JSON = 2**25
"""Bytes of the largest JSON file that is read: half a million volumes' names and digests; it takes 1 GiB unpacked."""

_LEFT = re.compile(
    r"\.(?P<kind>writing|former)-(?P<space>[0-9a-f]{8})-(?P<pid>\d+)-[a-z0-9_]{8}-(?P<name>.+)", re.DOTALL
)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a temporary path in `path`'s folder, and moves it over `path` if the block succeeds.

    The temporary name has the whole suffix of `path` (``.nii.gz``), for writers that derive the format from it. If the
    block fails or the process is killed, the old file at `path` stays as it was; the next process on this machine that
    writes `path` removes a temporary file that a killed one left. The new file has the old one's permissions. For a
    symbolic link, its target is replaced.

    Raises:
        BadInput: the disk is full, the folder read-only or a permission missing.
    """
    with replacing_together([path]) as (temporary,):
        yield temporary


@contextlib.contextmanager
def replacing_together(paths: Sequence[str | os.PathLike[str]]) -> Iterator[list[Path]]:
    """Does as `replacing` for several files: all of them are moved to their places, or none.

    A process that is killed between the moves, which are very short, may leave some of them moved; the last file of
    `paths` moves last. Former files are beside the new ones as ``.former-…`` until the next replacement.

    Raises:
        BadInput: as `replacing`; or the block raised one for a temporary path, which then names the file itself.
    """
    places = [Path(os.path.realpath(path)) for path in paths]
    temporaries: list[Path] = []
    try:
        for place in places:
            with named_failures(place):
                temporaries.append(_beside(place))
        with named_failures(places[0]):
            yield temporaries
            for temporary, place in zip(temporaries, places, strict=True):
                with open(temporary, "rb+") as stream:
                    os.fsync(stream.fileno())
                temporary.chmod(_permissions(place))  # mkstemp makes files for the owner alone
            _move(temporaries, places)
        for place in places:
            _forget("former", place)  # not before: until then it may be the only copy
    except BadInput as error:
        named = {os.fspath(temporary): place for temporary, place in zip(temporaries, places, strict=False)}
        if error.path not in named:
            raise
        raise BadInput(named[error.path], error.problem, error.remedy) from None
    finally:
        for temporary in temporaries:
            temporary.unlink(missing_ok=True)


def _move(temporaries: Sequence[Path], places: Sequence[Path]) -> None:
    """Moves each file to its place; if one of them cannot be moved, the files before it are moved back."""
    asides = [new.with_name(".former" + new.name.removeprefix(".writing")) for new in temporaries[:-1]]
    with contextlib.ExitStack() as back:
        for new, place, aside in zip(temporaries, places, asides, strict=False):
            back.callback(_move_back, new, place, aside)
            with named_failures(place):
                if place.is_file():
                    os.replace(place, aside)
                os.replace(new, place)
        with named_failures(places[-1]):
            os.replace(temporaries[-1], places[-1])  # at once: a single file is never moved aside
        back.pop_all()
    for aside in asides:
        aside.unlink(missing_ok=True)


def _move_back(new: Path, place: Path, aside: Path) -> None:
    if aside.exists():
        os.replace(aside, place)
    elif not new.exists():  # it was moved, to where there was nothing
        place.unlink(missing_ok=True)


def write_gzipped(text: bytes, path: str | os.PathLike[str]) -> None:
    """Writes `text` compressed; equal texts give equal files."""
    with replacing(path) as temporary, temporary.open("wb") as file, gzipping(file) as stream:
        stream.write(text)


def gzipping(file: BinaryIO) -> gzip.GzipFile:
    """Compresses into `file` without a name or a time, at level 1: level 9 takes six times as long and saves 10%."""
    return gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=file, mtime=0)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Checks, before long work, that its result can be written to `path`.

    Raises:
        BadInput: it cannot.
    """
    path = Path(os.path.realpath(path))
    if path.is_dir():
        raise BadInput(path, "a folder stands there", "give a file's name")
    with named_failures(path):
        _beside(path).unlink()


def check_output(
    path: str | os.PathLike[str],
    inputs: Iterable[str | os.PathLike[str]] = (),
    ours: Callable[[Path], bool] = lambda _path: True,
    force: bool = False,
) -> None:
    """Checks, before long work, that its result may take the place of what is at `path`.

    Args:
        path: the result's.
        inputs: what the work reads; none of it is ever replaced.
        ours: whether a file was written by the same command; no other file is ever replaced.
        force: replaces a file that is there.

    Raises:
        BadInput: it may not, or it cannot be written.
    """
    path = Path(path)
    check_kind(path)
    if path.exists():
        if any(os.path.exists(read) and os.path.samefile(path, read) for read in inputs):
            raise BadInput(path, "it is also read, and would be replaced", "give the output another name")
        if path.is_file() and not ours(path):
            raise BadInput(path, "a file stands there that this command did not write", "give the output another name")
        if path.is_file() and not force:
            raise BadInput(path, "it exists already", "give --force to replace it, or choose another name")
    check_writable(path)


def check_room(folder: str | os.PathLike[str], size: int, files: str, remedy: str) -> None:
    """Checks, before long work, that the disk has room for its files.

    Args:
        folder: on the disk.
        size: of all files, in bytes.
        files: their name in the error, as in "2 checkpoints".
        remedy: the advice in the error.

    Raises:
        BadInput: there is too little room.
    """
    free = shutil.disk_usage(folder).free
    if size > free:
        raise BadInput(folder, f"no room for {files}: {in_units(size)}, and {in_units(free)} are free", remedy)


def in_units(size: int) -> str:
    """Returns a number of bytes in words: in GiB, or in MiB below one."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def write_json(path: str | os.PathLike[str], content: object, **options: Any) -> None:
    """Writes JSON to `path`, as `replacing` does; `options` are those of `json.dumps`."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, **options) + "\n", encoding="utf-8")


def opened(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Opens a file for reading. Every file that a user may name is opened here.

    Raises:
        BadInput: it is a FIFO, a device or a socket, which may never answer or never end.
        OSError: as `open` does.
    """
    check_kind(path)
    return open(path, "rb", opener=_without_waiting)


def _without_waiting(path: str, flags: int) -> int:
    handle = os.open(path, flags | os.O_NONBLOCK)  # a FIFO may have taken the file's place since it was looked at
    try:
        check_kind(path, handle)
    except BadInput:
        os.close(handle)
        raise
    return handle


def check_kind(path: str | os.PathLike[str], handle: int | None = None) -> None:
    """Refuses a FIFO, a device or a socket at `path` (or open as `handle`).

    Raises:
        BadInput: a FIFO, a device or a socket stands there.
    """
    try:
        mode = os.stat(path if handle is None else handle).st_mode
    except (OSError, ValueError):  # ValueError: of a path that no file can have
        return
    if named := _KINDS.get(stat.S_IFMT(mode)):
        raise BadInput(path, f"{named} stands there", "give a file's name")


_KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}


def read_whole(path: str | os.PathLike[str], most: int, remedy: str) -> bytes:
    """Reads a file of at most `most` bytes.

    Raises:
        BadInput: it is larger, or as `opened`.
        OSError: as `open` does.
    """
    with opened(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > most:
            raise BadInput(path, f"it has {size} bytes, and a file of this kind at most {most}", remedy)
        return stream.read(size)


def check_hollow(path: str | os.PathLike[str], stream: BinaryIO) -> None:
    """Refuses a file most of which is not on the disk, as an interrupted download may leave it.

    Raises:
        BadInput: less than an eighth of it is on the disk.
    """
    known = os.fstat(stream.fileno())
    try:  # file systems that do not tell holes see one at the end, as in every file
        hole = os.lseek(stream.fileno(), 0, os.SEEK_HOLE)
    except OSError:
        hole = known.st_size
    stream.seek(0)
    if hole < known.st_size and (there := 512 * known.st_blocks) < known.st_size / 8:
        raise BadInput(path, f"only {there} of its {known.st_size} bytes are on the disk", "copy or download it again")


def read_json(path: str | os.PathLike[str], remedy: str) -> dict[str, Any]:
    """Reads an object from a JSON file.

    Args:
        path: the file.
        remedy: what the error tells the user to do.

    Raises:
        BadInput: it is missing, cannot be read, is larger than `LARGEST_JSON`, is not JSON, or holds no object.
    """
    try:
        content = json.loads(read_whole(path, LARGEST_JSON, remedy))
    except BadInput:  # a ValueError, as JSON's errors are
        raise
    except FileNotFoundError:
        raise BadInput(path, "it is missing", remedy) from None
    except OSError as error:  # which does not say that it is damaged: it may be whole
        problem = f"it cannot be read ({(error.strerror or str(error)).lower()})"
        raise BadInput(path, problem, "check the file and the disk") from None
    except (ValueError, RecursionError):  # RecursionError: brackets in thousands
        raise BadInput(path, "it is damaged: not readable as JSON", remedy) from None
    if not isinstance(content, dict):
        raise BadInput(path, "it is damaged: no JSON object", remedy)
    return content


def _permissions(path: Path) -> int:
    """Returns the permissions of the file that is replaced; for a new file those that the umask allows."""
    if path.exists():
        return stat.S_IMODE(path.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _beside(path: Path) -> Path:
    """Makes an empty file in the folder of `path`, and that folder if it is missing.

    Its name holds the process's number, so that a later process can tell whether the writer was killed.
    """
    check_kind(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _forget("writing", path)
    owner = f"{space}-{os.getpid()}-" if (space := _space()) else ""
    handle, name = tempfile.mkstemp(prefix=f".writing-{owner}", suffix="-" + path.name, dir=path.parent)
    os.close(handle)
    return Path(name)


def _forget(kind: str, path: Path) -> None:
    """Removes the unfinished or former files of `path` that dead processes left."""
    for abandoned in _abandoned(path.parent).pop((kind, path.name), ()):
        with contextlib.suppress(OSError):
            abandoned.unlink()


@functools.cache
def _abandoned(folder: Path) -> dict[tuple[str, str], list[Path]]:
    """Returns the files that dead processes left in a folder, by their kind and the file that they belong to.

    Lists the folder once: it may hold a hundred thousand samples, each of which is written.
    """
    files: dict[tuple[str, str], list[Path]] = defaultdict(list)
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            match = _LEFT.fullmatch(entry.name)
            if match and match["space"] == _space() and is_dead(int(match["pid"])):
                files[match["kind"], match["name"]].append(Path(entry.path))
    return files


@functools.cache
def _space() -> str:
    """Returns a name for the space of process numbers: this boot of this machine, or this container.

    Processes elsewhere may write to the same disk, and nothing here shows whether they live. Empty if unknown.
    """
    try:
        boot, space = Path("/proc/sys/kernel/random/boot_id").read_text(), os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return ""
    return hashlib.sha256(f"{boot}{space}".encode()).hexdigest()[:8]


def is_dead(pid: int) -> bool:
    """Returns whether no process of this machine has that number."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:  # it is another user's
        return False
    return False


@contextlib.contextmanager
def named_failures(path: Path) -> Iterator[None]:
    """Turns the system's errors of writing into a `BadInput` that names `path` and the remedy.

    If `path` does not exist and may not be written, the error names the folder that forbids it.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            problem, remedy = "no room left to write it", "free some space and run the same command again"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            path = next((place for place in (path, *path.parents) if os.path.exists(place)), path)
            problem, remedy = "may not be written", "choose another folder, or ask for permission to write here"
        elif error.errno == errno.ENOENT:
            problem, remedy = "there is no such folder", "make it, or choose another place"
        elif error.errno in (errno.ENOTDIR, errno.EEXIST):
            problem, remedy = "a file stands where its folder should be", "choose another place"
        elif error.errno == errno.EISDIR:
            problem, remedy = "a folder stands there", "give a file's name"
        else:  # never the error itself, which names the temporary file
            problem, remedy = (error.strerror or "it cannot be written").lower(), "correct it and try again"
        raise BadInput(path, problem, remedy) from None
