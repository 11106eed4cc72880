"""How old the pages' times are: the commits that measured them, and how many of the fast path's came since.

A marker's last argument is the commit up to which is counted, so that what stands on a page stays true, and its test
passes, while commits go on. `python -m study numbers` puts the newest commit of the fast path there by itself. Without
the repository's history (an archive, a shallow clone) the numbers stay as they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pandas as pd

from medddpm.measure import programs
from medddpm.measure.tables import read_meta, read_table
from study.bench import repeats, tables
from study.numbers.bench import recorded
from study.records import schemas

FAST_PATH = ("medddpm/fast", "medddpm/kernels")  # the kernels' folder until 30 November
_MARKER = re.compile(r"(<!--=ages\.\w+\((?:[^()]*, ?)?)[0-9a-f]{7,40}(\)-->)")
_OURS = ("accelerate", "graphed_step")
_Measured = list[tuple[str, str]]
"""The commits and dates of a table's rows of ours."""


def rows(root: Path, upto: str) -> list[str] | None:
    """Returns a row for each table of times: where it is, when it was measured and at which commits, and its age.

    The age is in commits of `FAST_PATH` up to the commit `upto`, merges not counted; of a commit that the history has
    lost it is "–". Where there are several, those of the first and of the last row are named.
    """
    lines = []
    for title, measured in _tables(root):
        ages = _ages(root, measured, upto)
        if ages is None:
            return None
        by_date = sorted(measured, key=lambda pair: pair[1])
        named, days = ([write(pair) for pair in (by_date[0], by_date[-1])] for write in (_name, _day))
        lines.append(f"|{title}|{_span(days)}|{_span(named)}|{_range(ages)}|")
    return lines


def since(root: Path, upto: str) -> str | None:
    """Returns how many commits of the fast path came after the rows of README's table: "24 to 69"."""
    ages = _ages(root, _of_networks(tables.compared(recorded(root))), upto)
    return None if ages is None else _range(ages)


def counted_to(root: Path, upto: str) -> str | None:
    """Returns the commit up to which is counted, and its day: "`20d9cbf` (30 November)"."""
    date = _git(root, "log", "-1", "--format=%cs", upto)
    return f"{_name((upto, ''))} ({_day((upto, date))})" if date and whole(root) else None


def advanced(root: Path, text: str) -> str:
    """Returns a page's text with the newest commit of the fast path in the markers of this file."""
    newest = _git(root, "log", "-1", "--no-merges", "--abbrev=10", "--format=%h", "--", *FAST_PATH)
    return _MARKER.sub(rf"\g<1>{newest}\g<2>", text) if newest and whole(root) else text


def _tables(root: Path) -> Iterator[tuple[str, _Measured]]:
    """Yields the title of each table of times and the commits and dates of its rows on the fast path."""
    h100, h200 = recorded(root)["H100"], recorded(root)["H200"]
    yield "README: networks", _of_networks(tables.compared(recorded(root)))
    yield "networks on the H200", _of_networks(h200[h200["date"] >= "2026-11-26"])
    for card, record in (("H100", h100), ("H200", h200)):
        steps = tables.rows_of(record, tables.OURS, "step")
        yield f"Med-DDPM on the {card}: `accelerate`, `graphed_step`", _pairs(steps.loc[list(_OURS)])
        yield f"Med-DDPM on the {card}: FAST", _pairs(steps.loc[["FAST"]])
        runs = pd.concat(repeats.on_other_hosts(root, card))
        yield f"the smallest step's other runs on the {card}", _pairs(runs.loc[runs.index.isin(_OURS)])
    for title, name, schema in (
        ("nnU-Net's own benchmark", "nnunet", schemas.NNUNET),
        ("19: throughput", "throughput", schemas.THROUGHPUT),
        ("20: scaling", "scaling", schemas.SCALING),
    ):
        for card in ("H100", "H200"):
            path = _folder(root, card) / f"{name}.csv"
            if path.exists():
                table = read_table(path, schema)
                yield f"{title}, {card}", _pairs(table) if "commit" in table else _described(path)
    for title, name in (("16: shares of kernel time", "coverage"), ("16: FAST's profile", "kernels_fast_step_run1")):
        yield f"{title}, H100", _described(_folder(root, "H100") / f"{name}.csv")
    for title, card in (("17: pairs, H200", "H200"), ("17: against FP32, H100", "H100")):
        yield title, _described(_folder(root, card) / "quality.csv")


def _of_networks(record: pd.DataFrame) -> _Measured:
    theirs = tables.others(record).index
    return _pairs(record[record["network"].isin(theirs) & record["setting"].isin(_OURS)])


def _pairs(table: pd.DataFrame) -> _Measured:
    known = table.dropna(subset=["commit"])
    return list(zip(known["commit"].astype(str), known["date"].astype(str), strict=True))


def _described(path: Path) -> _Measured:
    meta = read_meta(path)
    return [(str(meta["commit"]), str(meta["date"]))]


def _ages(root: Path, measured: _Measured, upto: str) -> dict[str, float] | None:
    """Returns the age of each commit, NaN where the history has lost it; None without the history."""
    commits = dict.fromkeys(commit for commit, _ in measured)
    if not whole(root) or not _git(root, "rev-parse", "--verify", "--quiet", f"{upto}^{{commit}}"):
        return None
    return {commit: _age(root, commit, upto) for commit in commits}


@cache
def _age(root: Path, commit: str, upto: str) -> float:
    count = _git(root, "rev-list", "--count", "--no-merges", f"{commit}..{upto}", "--", *FAST_PATH)
    return float(count) if count else float("nan")


@cache
def whole(root: Path) -> bool:
    """Returns whether the repository has its history, and all of it."""
    return _git(root, "rev-parse", "--is-shallow-repository") == "false"


def _git(root: Path, *words: str) -> str | None:
    return programs.output("git", "-C", str(root), *words)


def _range(ages: dict[str, float]) -> str:
    """Writes the least and the most age, and "–" for what the history has lost: "24 to 69", "71 and –"."""
    known = sorted(age for age in ages.values() if not math.isnan(age))
    texts = [_span([f"{age:.0f}" for age in known])] if known else []
    return " and ".join(texts + ["–"] * (len(known) < len(ages)))


def _span(ends: list[str]) -> str:
    return ends[0] if ends[0] == ends[-1] else f"{ends[0]} to {ends[-1]}"


def _name(measured: tuple[str, str]) -> str:
    return f"`{measured[0][:7]}`"


def _day(measured: tuple[str, str]) -> str:
    day = pd.Timestamp(measured[1])
    return f"{day.day} {day.month_name()}"


def _folder(root: Path, card: str) -> Path:
    return root / "figures" / "records" / card
