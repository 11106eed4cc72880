"""Reads the CSV pages of Nsight Compute (`ncu --import REPORT --page raw --csv`, or details), of 2022 and later."""

from __future__ import annotations

import csv
import gzip
import io
import math
import operator
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile, islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from medddpm.errors import BadInput

BATCH = 200  # rows held as text at a time: as many as stay in the cache
FIRST = "ID"  # the first column of both pages
EXPORT = "export it anew: LC_ALL=C ncu --import REPORT --page {page} --csv --print-metric-instances details > FILE.csv"
CLOSED = "ERR_NVGPUCTRPERM"  # how ncu says that it may not read the GPU's counters
OPEN_COUNTERS = (
    "run as root (with sudo, or in a container with --cap-add SYS_ADMIN), or have the administrator load the driver "
    "with NVreg_RestrictProfilingToAdminUsers=0"
)


@dataclass
class Page:
    """An open page: the names of its columns, and its rows, which can be read once.

    Args:
        path: the file.
        name: "raw" or "details".
        header: the columns' names.
        units: the unit of each column; empty on the details page, whose units are in a column.
        rows: the rows that follow, each as long as the header.
        errors: the ==ERROR== lines met so far.
    """

    path: Path
    name: str
    header: list[str]
    units: dict[str, str]
    rows: Iterator[list[str]]
    errors: list[str] = field(default_factory=list)

    def batches(self, columns: Sequence[str]) -> Iterator[list[tuple[str, ...]]]:
        """The cells of `columns`, one tuple a row, `BATCH` rows at a time.

        Raises:
            BadInput: there is no row at all, a row is cut short, or ncu failed halfway.
        """
        pick = operator.itemgetter(*[self.header.index(name) for name in columns])
        read = 0
        while rows := list(islice(self.rows, BATCH)):
            read += len(rows)
            yield [pick(row) for row in rows] if len(columns) > 1 else [(pick(row),) for row in rows]
        if not read:
            raise BadInput(self.path, "has a header but no launch below it", _cut(self.name))
        if self.errors and not re.search(r"application returned an error", self.errors[0]):
            raise _failed(self.path, self.errors[0])


def open_page(path: str | os.PathLike[str], name: str) -> Page:
    """Opens the "raw" or the "details" page at `path`, plain or gzipped, and reads its header.

    Lines that ncu or the profiled program printed before, between and after the rows are passed over.

    Raises:
        BadInput: there is no such file, or it is empty, cut short, translated, another page, not of ncu, or holds
            nothing but ncu's errors, of which the first is quoted.
    """
    path = Path(path)
    errors: list[str] = []
    lines = _lines(path, name, errors)
    header = _header(path, name, lines, errors)
    rows = _rows(path, name, _whole(path, name, lines), header)
    units: dict[str, str] = {}
    if name == "raw":
        second = next(rows, None)
        if second is None:
            raise BadInput(path, "is cut off after its header", _cut(name))
        if second[0]:
            raise BadInput(path, "has no row of units below its header", EXPORT.format(page=name))
        units = dict(zip(header, second, strict=True))
    return Page(path, name, header, units, rows, errors)


def launches_in(text: str) -> int:
    """The number of launches in the text of an export of either page; 0 if it holds no table, or a broken one."""
    lines = (line for line in io.StringIO(text, newline="") if not _is_log(line))
    table = dropwhile(lambda line: not re.match(rf'"?{FIRST}\W', line), lines)
    try:
        return len({row[0] for row in islice(_reader(table), 1, None)} - {""})  # the units' row has no ID
    except csv.Error:
        return 0


def numbers(cells: Sequence[str], column: str, path: Path, page: str = "raw") -> NDArray[np.float64]:
    """The cells of a column as numbers. Thousands commas are allowed; what ncu could not measure (n/a, inf) is NaN.

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


def unit_factor(unit: str, wanted: str) -> float | None:
    """The factor that turns a number in `unit` into one in `wanted`; None if the two do not measure the same.

    Args:
        unit: as any release of ncu writes it: ns, nsecond, usecond, ms, second, byte, Kbyte, inst, Mcycle, %.
        wanted: "ns", "byte", "%", or a countable such as "inst", "cycle", "warp" or a ratio of two.
    """
    unit = unit.strip()
    if wanted == "ns":
        return _TIMES.get(unit)
    if wanted == "%":
        return 1.0 if unit in ("%", "pct", "percent") else None
    if unit == wanted:
        return 1.0
    return _PREFIXES.get(unit[:1]) if unit[1:] == wanted else None


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


def _finite(values: Sequence[float]) -> NDArray[np.float64]:
    found = np.array(values, dtype=np.float64)
    found[~np.isfinite(found)] = math.nan
    return found


def _cut(name: str) -> str:
    return f"it was cut short or ncu was ended early: {EXPORT.format(page=name)}"


def _failed(path: Path, error: str) -> BadInput:
    remedy = OPEN_COUNTERS if CLOSED in error else "mend that and profile again"
    return BadInput(path, f"ncu failed: {error}", remedy)


def _open(path: Path) -> BinaryIO:
    with path.open("rb") as stream:
        zipped = stream.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if zipped else path.open("rb")  # type: ignore[return-value]


def _lines(path: Path, name: str, errors: list[str]) -> Iterator[str]:
    """The lines that ncu did not mark as its own log; the log's errors go to `errors`."""
    if not path.is_file():
        raise BadInput(
            path,
            "a folder stands there" if path.is_dir() else "there is no such file",
            f"give ncu's {name} page as CSV",
        )
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
            with io.TextIOWrapper(binary, encoding=encoding, errors="replace", newline="") as text:
                for line in text:
                    if _is_log(line):
                        if line.startswith("==ERROR=="):
                            errors.append(line.removeprefix("==ERROR==").strip())
                        continue
                    yield line
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise BadInput(path, "its gzip archive is broken or cut short", "copy it again, or compress it anew") from None
    except OSError as error:
        raise BadInput(path, f"cannot be read ({error.strerror})", "let this user read it, or copy it") from None


def _is_log(line: str) -> bool:
    """Whether a line belongs to ncu's log, as blank lines do."""
    return line.startswith("==") or line.isspace()


def _header(path: Path, name: str, lines: Iterator[str], errors: list[str]) -> list[str]:
    for line in lines:
        start = line.lstrip('"')
        if not (re.match(rf"{FIRST}\W", start) or (len(_METRIC_NAME.findall(line)) > 1 and line.count('"') > 3)):
            continue  # something that the profiled program printed
        if re.match(r'ID"?[;\t]', start):
            problem = "its columns are not separated by commas: a spreadsheet saved it"
            raise BadInput(path, problem, EXPORT.format(page=name))
        header = next(_rows(path, name, iter([line]), None))
        if header[0] != FIRST or "Kernel Name" not in header:
            raise BadInput(path, "its column names are not ncu's English ones", EXPORT.format(page=name))
        is_details = "Metric Name" in header or "Rule Name" in header
        if is_details != (name == "details"):
            found = "details" if is_details else "raw"
            raise BadInput(path, f"is not ncu's {name} page but its {found} page", EXPORT.format(page=name))
        return header
    if errors:
        raise _failed(path, errors[0])
    raise BadInput(path, f"holds no table of ncu's {name} page", EXPORT.format(page=name))


def _whole(path: Path, name: str, lines: Iterator[str]) -> Iterator[str]:
    """The lines; the last may lack its newline only if it closes a field."""
    for line in lines:
        if not line.endswith(("\n", '"')):
            raise BadInput(path, "ends in the middle of a line", _cut(name))
        yield line


def _rows(path: Path, name: str, lines: Iterator[str], header: list[str] | None) -> Iterator[list[str]]:
    """The rows below `header`, or with None the header itself."""
    width = len(header) if header else 0
    # A metric's row of the details page ends where the columns of the rules begin, one empty field in.
    shorter = header.index("Rule Name") + 1 if header and "Rule Name" in header else width
    try:
        for row in _reader(lines):
            if header:
                if len(row) != width:
                    if len(row) != shorter:
                        problem = f"a row has {len(row)} fields where its header has {width}"
                        raise BadInput(path, problem, _cut(name))
                    row += [""] * (width - shorter)
                if row[0] == FIRST:
                    raise BadInput(path, "holds two reports, one after the other", "give each by itself")
            yield row
    except csv.Error:
        raise BadInput(path, "a quoted field is not closed", _cut(name)) from None


def _reader(lines: Iterable[str]) -> Iterator[list[str]]:
    csv.field_size_limit(2**31 - 1)  # a metric with an instance for each address fills a field
    return csv.reader(lines, strict=True)
