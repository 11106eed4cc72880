"""One broken file against its reader, within the limits of time and memory that SECURITY.md promises."""

from __future__ import annotations

import contextlib
import hashlib
import resource
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path

from fuzz.families import Family
from medddpm.errors import BadInput

SECONDS, GIB = 10, 2.0
CASES = Path(__file__).parent / "cases"
LONGEST = 1000  # characters of a message: it names a file, a fault and a remedy, not the file's content


class Broken(AssertionError):
    """A reader that did not keep its promise."""


def attack(family: Family, content: bytes, folder: Path) -> str:
    """Has the family's reader read `content`; returns what it answered: "read", or the message it refused it with.

    Raises:
        Broken: it raised anything but `BadInput`, warned, took too long or too much memory, or its message is not a
            single printable line.
    """
    path = folder / family.file
    path.write_bytes(content)
    try:
        with limited(), warnings.catch_warnings():
            warnings.simplefilter("error")
            family.read(path)
    except BadInput as error:
        text = str(error)
        if not text.isprintable() or len(text) > LONGEST:
            raise Broken(
                f"{family.name}: a message of {len(text)} characters, or not printable: {text[:200]!r}"
            ) from None
        return text
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise Broken(f"{family.name}: {type(error).__name__}: {str(error)[:300]}") from error
    return "read"


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Inside, more than `SECONDS` ends in TimeoutError, and an allocation of more than `GIB` fails."""

    def late(_number: int, _frame: object) -> None:
        raise TimeoutError(f"more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (_data_bytes() + int(GIB * 2**30), hard))
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _data_bytes() -> int:
    """What the limit counts now: private writable memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    return pages * resource.getpagesize()


def keep(family: Family, content: bytes) -> Path:
    """Files a broken file as a regression case; returns its path."""
    name = hashlib.sha256(content).hexdigest()[:12]
    path = CASES / family.name / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
