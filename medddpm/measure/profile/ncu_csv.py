"""Reads the CSV pages of Nsight Compute (`ncu --import REPORT --page raw --csv`, or details), of 2022 and later."""

from __future__ import annotations

import contextlib
import csv
import functools
import gzip
import io
import math
import operator
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from medddpm.errors import BadInput
from medddpm.runtime.files import opened

BATCH = 200  # rows held as text at a time: as many as stay in the cache
LARGEST_LINE, LARGEST = 2**24, 2**29  # characters, unpacked; a counter with an instance for each address has 10**5
MOST_LINES = 300_000  # which take ten seconds
FIRST = "ID"  # the first column of both pages
EXPORT = "export it anew: LC_ALL=C ncu --import REPORT --page {page} --csv --print-metric-instances details > FILE.csv"
CLOSED = "ERR_NVGPUCTRPERM"  # how ncu says that it may not read the GPU's counters
OPEN_COUNTERS = (
    "run as root (with sudo, or in a container with --cap-add SYS_ADMIN), or have the administrator load the driver "
    "with NVreg_RestrictProfilingToAdminUsers=0"
)
NO_KERNELS = "No kernels were profiled"  # how ncu says that it saw no launch, or that its options left out all
REACH_KERNELS = (
    "profile with --target-processes all if another process launches the kernels, without --profile-from-start off "
    "unless the program calls cudaProfilerStart, and with filters that a kernel passes"
)


@dataclass
class Log:
    """ncu's messages among the lines of a page.

    Args:
        errors: the ==ERROR== lines.
        no_kernels: the line that says that no kernel was profiled; empty if there is none.
    """

    errors: list[str] = field(default_factory=list)
    no_kernels: str = ""

    def hear(self, line: str) -> None:
        """Notes an error, or that no kernel was profiled, from a line of ncu's log."""
        kind, _, words = line.removeprefix("==").strip().partition("==")
        if kind == "ERROR":
            self.errors.append(words.strip())
        elif NO_KERNELS in words and not self.no_kernels:
            self.no_kernels = words.strip(" .\r\n")


@dataclass
class Page:
    """An open page: the names of its columns, and its rows, which can be read once.

    Args:
        path: the file.
        name: "raw" or "details".
        header: the columns' names.
        units: the unit of each column; empty on the details page, whose units are in a column.
        rows: the rows that follow, each as long as the header.
        log: ncu's messages so far.
    """

    path: Path
    name: str
    header: list[str]
    units: dict[str, str]
    rows: Iterator[list[str]]
    log: Log = field(default_factory=Log)

    def batches(self, columns: Sequence[str]) -> Iterator[list[tuple[str, ...]]]:
        """Yields the cells of `columns`, one tuple a row, `BATCH` rows at a time.

        Raises:
            BadInput: there is no row at all, a row is cut short, or ncu failed halfway.
        """
        pick = operator.itemgetter(*[self.header.index(name) for name in columns])
        read = 0
        while rows := list(map(pick, islice(self.rows, BATCH))):
            read += len(rows)
            yield rows if len(columns) > 1 else [(cell,) for cell in rows]
        errors = self.log.errors
        if not read:
            raise _nothing(self.path, self.log) or BadInput(
                self.path, "has a header but no launch below it", _cut(self.name)
            )
        if errors and not re.search(r"application returned an error", errors[0]):
            raise _failed(self.path, errors[0])


def open_page(path: str | os.PathLike[str], name: str) -> Page:
    """Opens the "raw" or the "details" page at `path`, plain or gzipped, and reads its header.

    A row begins with its ID in quotes. Lines that ncu or the profiled program printed before, between and after the
    rows are passed over, and so is what stands in front of the header or of a row because it ended without a newline.

    Raises:
        BadInput: there is no such file, or it is a pipe or a device, empty, cut short, translated, too large, another
            page, not of ncu, or holds nothing but what ncu says, which is quoted.
    """
    path = Path(path)
    log = Log()
    lines = _lines(path, name, log)
    header, quoted = _header(path, name, lines, log)
    rows = _rows(path, name, lines, header, quoted)
    units: dict[str, str] = {}
    if name == "raw":
        second = next(rows, None)
        if second is None:
            raise _nothing(path, log) or BadInput(path, "is cut off after its header", _cut(name))
        if second[0]:
            raise BadInput(path, "has no row of units below its header", EXPORT.format(page=name))
        units = dict(zip(header, second, strict=True))
    return Page(path, name, header, units, rows, log)


def launches_in(text: str) -> int:
    """Counts the launches in the text of an export of either page; 0 if it holds no table, or a broken one."""
    lines = (line for line in io.StringIO(text, newline="") if not _is_log(line))
    for line in lines:
        if (at := _header_at(line)) is not None:
            try:
                header = next(_reader([line[at:]]))
                rows = _rows(Path(), _page_of(header), lines, header, line[at] == '"')
                return len({row[0] for row in rows} - {""})  # the units' row has no ID
            except (BadInput, csv.Error):
                return 0
    return 0


def numbers(cells: Sequence[str], column: str, path: Path, page: str = "raw") -> NDArray[np.float64]:
    """Parses the cells of a column. Thousands commas are allowed; values that ncu could not measure (n/a, inf) are NaN.

    Raises:
        BadInput: a cell is no number as ncu writes it in English.
    """
    joined = "\n".join(cells)
    if "," not in joined:
        try:
            return _finite(list(map(float, cells)))
        except ValueError:
            pass  # something is missing or odd
    if joined.count("\n") != len(cells) - 1:
        raise BadInput(path, f"a cell of column {column} goes over several lines", EXPORT.format(page=page))
    if not _GROUPED.fullmatch(joined + "\n") and (odd := _ODD.search(joined)):
        text = odd.group()
        if _LOCALISED.fullmatch(text):
            problem = f"column {column} holds {text!r}: numbers are written with decimal commas"
        else:
            problem = f"column {column} holds {text!r} where a number is wanted"
        raise BadInput(path, problem, EXPORT.format(page=page))
    if "n" in joined:
        joined = _MISSING.sub("", joined)
    return _finite([float(cell) if cell else math.nan for cell in joined.replace(",", "").split("\n")])


def unit_factor(unit: str, target: str) -> float | None:
    """Returns the factor that converts a number from `unit` to `target`; None if the units are of different quantities.

    Args:
        unit: as any release of ncu writes it: ns, nsecond, usecond, ms, second, byte, Kbyte, inst, Mcycle, %.
        target: "ns", "byte", "%", or a countable such as "inst", "cycle", "warp" or a ratio of two.
    """
    unit = unit.strip()
    if target == "ns":
        return _TIMES.get(unit)
    if target == "%":
        return 1.0 if unit in ("%", "pct", "percent") else None
    if unit == target:
        return 1.0
    return _PREFIXES.get(unit[:1]) if unit[1:] == target else None


_TIMES = {
    **dict.fromkeys(("ns", "nsecond", "nanosecond", "nanoseconds"), 1.0),
    **dict.fromkeys(("us", "usecond", "microsecond", "microseconds", "µs", "μs"), 1e3),
    **dict.fromkeys(("ms", "msecond", "millisecond", "milliseconds"), 1e6),
    **dict.fromkeys(("s", "second", "seconds", "sec"), 1e9),
}
_PREFIXES = {"K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}  # decimal, as ncu scales

_NUMBER = r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][+-]?\d+)?"
_NOTHING = r"(?:\(!\) ?)?[+-]?(?:n/a|nan|inf)"
_GROUPED = re.compile(r"(?:\d{1,3}+(?:,\d{3}+)*+(?:\.\d++)?+\n)*+")  # most columns; settled without looking ahead
_ODD = re.compile(rf"^(?!(?:{_NUMBER}|{_NOTHING}|)$).*$", re.MULTILINE)
_MISSING = re.compile(rf"^{_NOTHING}$", re.MULTILINE)
_LOCALISED = re.compile(r"[+-]?\d[\d.' \u00a0\u2009\u202f]*,\d+%?|[+-]?\d[\d' \u00a0\u2009\u202f.]*\d(?:,\d+)?")
_METRIC_NAME = re.compile(r"\b[a-z0-9]+__[a-z0-9_]+")
_ROW = re.compile(r'"(?:\d[\d,.]*)?(?:","|"?,?\Z)|"\d[\d,.]*"\r?\n')  # or as much as there is of a row at a file's end
_ROW_BEHIND = re.compile(r'"\d[\d,]*","\d+","')  # its ID and its process's


def _finite(values: Sequence[float]) -> NDArray[np.float64]:
    array = np.array(values, dtype=np.float64)
    array[~np.isfinite(array)] = math.nan
    return array


def _cut(name: str) -> str:
    return f"it was cut short or ncu was ended early: {EXPORT.format(page=name)}"


def _failed(path: Path, error: str) -> BadInput:
    remedy = OPEN_COUNTERS if CLOSED in error else "mend that and profile again"
    return BadInput(path, f"ncu failed: {error}", remedy)


def _nothing(path: Path, log: Log) -> BadInput | None:
    """Returns the reason that ncu gives for a page without a launch, which is not damaged; None if it gives none."""
    if log.errors:
        return _failed(path, log.errors[0])
    return BadInput(path, f'ncu says "{log.no_kernels}"', REACH_KERNELS) if log.no_kernels else None


@contextlib.contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    with opened(path) as stream:
        zipped = stream.peek(2)[:2] == b"\x1f\x8b"
        yield gzip.GzipFile(fileobj=stream) if zipped else stream  # type: ignore[misc]


def _lines(path: Path, name: str, log: Log) -> Iterator[str]:
    """Yields the lines of the page; `log` hears the lines of ncu's log."""
    try:
        with _open(path) as binary:
            start = binary.read(4096)
            binary.seek(0)
            # PowerShell's > writes UTF-16.
            encoding = "utf-16" if start[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
            if not start.strip():
                raise BadInput(path, "is empty", EXPORT.format(page=name))
            if encoding != "utf-16" and b"\0" in start:
                raise BadInput(path, "is no text; if it is ncu's report, its CSV is wanted", EXPORT.format(page=name))
            read = 0
            with io.TextIOWrapper(binary, encoding=encoding, errors="replace", newline="") as text:
                for count, line in enumerate(iter(functools.partial(text.readline, LARGEST_LINE), "")):
                    read += len(line)
                    if len(line) == LARGEST_LINE or read > LARGEST or count >= MOST_LINES:
                        sizes = f"a line of {LARGEST_LINE >> 20} MiB, {LARGEST >> 20} MiB in all, {MOST_LINES:,} lines"
                        remedy = "profile fewer launches (--launch-count), or fewer --metrics"
                        raise BadInput(path, f"is larger than a page may be ({sizes})", remedy)
                    if _is_log(line):
                        log.hear(line)
                    else:
                        yield line
    except FileNotFoundError:
        raise BadInput(path, "there is no such file", f"give ncu's {name} page as CSV") from None
    except IsADirectoryError:
        raise BadInput(path, "a folder stands there", f"give ncu's {name} page as CSV") from None
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise BadInput(path, "its gzip archive is broken or cut short", "copy it again, or compress it anew") from None
    except OSError as error:
        raise BadInput(path, f"cannot be read ({error.strerror})", "let this user read it, or copy it") from None


def _is_log(line: str) -> bool:
    """Returns whether a line belongs to ncu's log, as blank lines do."""
    return line.startswith("==") or line.isspace()


def _header(path: Path, name: str, lines: Iterator[str], log: Log) -> tuple[list[str], bool]:
    """Returns the names of the columns, and whether they are in quotes, as in ncu's own export."""
    for line in lines:
        at = _header_at(line)
        if at is None:
            continue  # something that the profiled program printed
        line = line[at:]
        if re.match(r'"?ID"?[;\t]', line):
            problem = "its columns are not separated by commas: a spreadsheet saved it"
            raise BadInput(path, problem, EXPORT.format(page=name))
        try:
            header = next(_reader([line]))
        except csv.Error:
            raise BadInput(path, "a quoted field is not closed", _cut(name)) from None
        if header[0] != FIRST or "Kernel Name" not in header:
            raise BadInput(path, "its column names are not ncu's English ones", EXPORT.format(page=name))
        if (page := _page_of(header)) != name:
            raise BadInput(path, f"is not ncu's {name} page but its {page} page", EXPORT.format(page=name))
        return header, line.startswith('"')
    raise _nothing(path, log) or BadInput(path, f"holds no table of ncu's {name} page", EXPORT.format(page=name))


def _page_of(header: Sequence[str]) -> str:
    return "details" if "Metric Name" in header or "Rule Name" in header else "raw"


def _header_at(line: str) -> int | None:
    """Finds the place in a line at which the columns' names begin; None if it has none."""
    at = line.find(f'"{FIRST}","')
    if "Kernel Name" not in line and len(re.findall('"[,;\t]"', line)) < 8:  # of any page, eight name the launch
        return None
    if at >= 0 or re.match(rf'"?{FIRST}"?[,;\t]', line):
        return max(at, 0)
    return 0 if len(_METRIC_NAME.findall(line)) > 1 else None  # in another language


def _rows(path: Path, name: str, lines: Iterable[str], header: Sequence[str], quoted: bool) -> Iterator[list[str]]:
    """Yields the rows below `header`."""
    width = len(header)
    # A metric's row of the details page ends where the columns of the rules begin, one empty field in.
    shorter = header.index("Rule Name") + 1 if "Rule Name" in header else width
    try:
        for row in _reader(_of_rows(path, name, lines, width, quoted)):
            if row[0] == FIRST:
                raise BadInput(path, "holds two reports, one after the other", "give each by itself")
            if len(row) != width:
                if len(row) != shorter:
                    problem = f"a row has {len(row)} fields where its header has {width}"
                    raise BadInput(path, problem, _cut(name))
                row += [""] * (width - shorter)
            yield row
    except csv.Error:
        raise BadInput(path, "a quoted field is not closed", _cut(name)) from None


def _of_rows(path: Path, name: str, lines: Iterable[str], width: int, quoted: bool) -> Iterator[str]:
    """Yields the lines of rows, without the profiled program's output between and in front of them."""
    is_open = False  # a field in quotes goes on in the next line
    for line in lines:
        if quoted and not is_open and not _ROW.match(line):
            if '"' not in line:
                continue
            if behind := _ROW_BEHIND.search(line):
                line = line[behind.start() :]
            elif (at := line.find(f'"{FIRST}","')) >= 0:
                line = line[at:]
            elif line.count('","') >= width // 2:
                raise BadInput(path, "a row does not begin with its ID", _cut(name))
            else:
                continue
        if not line.endswith(("\n", '"')):
            raise BadInput(path, "ends in the middle of a line", _cut(name))
        is_open ^= line.count('"') % 2 == 1
        # A rule's description may have several lines; a row of the raw page is one, and its last field is in quotes.
        if quoted and name == "raw" and (is_open or not line.rstrip("\r\n").endswith('"')):
            raise BadInput(path, "a quoted field is not closed", _cut(name))
        yield line


def _reader(lines: Iterable[str]) -> Iterator[list[str]]:
    csv.field_size_limit(2**31 - 1)  # a metric with an instance for each address fills a field
    return csv.reader(lines, strict=True)
