"""The page for whoever evaluates the artifact: each claim with its command, card, minutes, tolerance and records."""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd

from medddpm.measure.tables import gpu_folders, read_meta, read_table
from medddpm.runtime.files import read_json
from study.bench import leases
from study.claims.paper import paper_claims
from study.numbers import networks, smallest_step
from study.numbers.bench import recorded
from study.records import groups
from study.records.durations import Took, took
from study.records.schemas import CLAIMS
from study.words import listed

_FIGURES = range(2, 14)
_LONGEST = 100  # characters of a command as a record's description has it
_REPLAY = "`python -m study book --only {}`"
_TABLES = ("claims.csv", "claims_step.csv")
_TABLE = re.compile(r"\.csv(\.gz)?$")


@dataclass(frozen=True)
class _Ours:
    """A claim of README and the pages about this package.

    Args:
        claim: in a table's cell.
        page: the number of the notebook that shows it; empty if the pages alone have it.
        kinds: of the records that it rests on (`study.records.groups`).
        tolerance: within what a repetition of it is expected.
        replay: how the records are read anew; by default by its notebook.
    """

    claim: str
    page: str
    kinds: tuple[str, ...]
    tolerance: Callable[[Path], str]
    replay: str = ""


def _within_a_run(root: Path) -> str:
    return f"{networks.steady_within(root, 'compared')}% from the 10th to the 90th percentile of a run"


def _of_every_run(root: Path) -> str:
    return f"a ratio of {smallest_step.ratio(root, 'ratio')}, the least and the most of {smallest_step.runs(root)} runs"


def _of_the_report(root: Path) -> str:
    table = read_table(root / "figures" / "records" / "claims_cuda_report.csv", CLAIMS)
    return _tolerances(table)


def _said(tolerance: str) -> Callable[[Path], str]:
    return lambda _root: tolerance


_NONE = _said("none stated")
_OURS = (
    _Ours("README's table: networks with `accelerate` and `graphed_step`", "16", ("bench.", "bench_anchors."),
          _within_a_run),
    _Ours("Med-DDPM: FAST, `accelerate`, every change from BASE, ordinary tools", "16", ("bench.", "ceilings."),
          _within_a_run),
    _Ours("the smallest step in every run", "16", ("bench.", "bench_other_hosts."), _of_every_run),
    _Ours("shares of an accelerated step", "16", ("coverage.",), _NONE),
    _Ours("nnU-Net's own benchmark", "", ("nnunet.",), _NONE, "`python -m study numbers`"),
    _Ours("FAST's quality beside TF32's and FP32's", "17", ("quality", "loss.", "phantom-flair-64/"),
          _said("each metric's stated margin")),
    _Ours("samplers and models", "21", ("quality", "loss."), _said("95% intervals")),
    _Ours("the ConvNeXt block of the CUDA report", "18", ("convnext_",), _of_the_report),
    _Ours("what keeps a GPU busy", "19", ("throughput.", "endurance."), _NONE),
    _Ours("several GPUs", "20", ("scaling.", "bench.", "throughput."), _said("the record's 10th to 90th percentile")),
    _Ours("losses and steps under every setting", "01", ("training.",), _NONE),
    _Ours("samples judged as brains", "23", ("judge_", "brains/"), _said("the ranges of held-out heads")),
    _Ours("what bounds other people's networks, and what tools would gain", "", ("networks/",), _NONE,
          "`medddpm report figures/records/H200/networks/NAME/pytorch`"),
    _Ours("[the tests on the cards](card_tests.md)", "", ("gpu_tests",), _said("none fails"),
          "`python -m study numbers`"),
)  # fmt: skip


# rows


def paper(root: Path) -> list[str]:
    """Returns a row for each figure and table of the paper, and for what it claims elsewhere."""
    claims = paper_claims(root)
    lines = []
    for number in _FIGURES:
        (path,) = sorted((root / "notebooks").glob(f"*_fig{number:02}_*.ipynb"))
        ids = claims.loc[claims["figure"] == f"Fig {number}", "id"]
        lines.append(_row(root, f"Figure {number}{_ids(ids)}", path.name[:2], _kinds(root, path), _judged(root, ids)))
    tables = {"Table 1": "03", "Table 2": "24"}
    for name, page in tables.items():
        ids = claims.loc[claims["figure"] == name, "id"]
        kinds = ("card.",) if page == "03" else ()
        lines.append(_row(root, f"{name}{_ids(ids)}", page, kinds, _judged(root, ids)))
    rest = claims.loc[claims["figure"].isna(), "id"]
    profiles = ("kernels_", "launches_")
    lines.append(_row(root, f"abstract and text{_ids(rest)}", "24", profiles, _judged(root, rest)))
    rules = "rules in parts (`study/claims/takeaways.py`, `statements.py`)"
    lines.append(_row(root, "takeaways, and sentences without a number", "24", profiles, rules))
    return lines


def ours(root: Path) -> list[str]:
    """Returns a row for each claim about this package."""
    return [_row(root, each.claim, each.page, each.kinds, each.tolerance(root), each.replay) for each in _OURS]


def records(root: Path) -> list[str]:
    """Returns a row for each card and kind of record: files, days, the command as recorded, minutes, their sum."""
    lines = []
    for (card, kind), names in _by_kind(root).items():
        paths = [root / "figures" / "records" / name for name in names]
        sums = groups.sums(root)
        described = [read_meta(path) for path in paths if _is_table(path)]
        command = _shortened([str(meta.get("command", "")) for meta in described])
        digest = groups.digest([sums[name] for name in names])
        cells = [f"`{card}/{kind}`", str(len(names)), _days(paths), command, str(_took(paths)), f"`{digest}`"]
        lines.append(f"|{'|'.join(cells)}|")
    return lines


def leases_of(root: Path, card: str) -> list[str]:
    """Returns a row for each lease of a card: host, card, day, and Med-DDPM's step in it, from p10 to p90."""
    record = recorded(root)[card]
    anchors = leases.anchors(root, card)
    letters = leases.named(record if anchors.empty else pd.concat([record, anchors]))
    lines = []
    for _, row in anchors.iterrows():
        letter = letters[row["host"], row["card"] or ""]
        spread = f"{row['median_ms']:.2f} ({row['p10_ms']:.2f} to {row['p90_ms']:.2f})"
        lines.append(f"|{letter}|`{row['host']}`|`{row['card']}`|{_span([row['date']])}|{spread}|")
    if record["host"].isna().any():
        lines.append(f"|–|not recorded|not recorded|{_span(record.loc[record['host'].isna(), 'date'].tolist())}|–|")
    return lines


# cells


def _row(root: Path, claim: str, page: str, kinds: Iterable[str], tolerance: str, replay: str = "") -> str:
    """Writes a row: the claim, how it is replayed and measured anew, minutes by card, tolerance, records."""
    (path,) = sorted((root / "notebooks").glob(f"{page}_*.ipynb")) if page else (None,)
    kinds = tuple(kinds)
    named, _, ids = claim.partition(" (P")
    title = f"[{named}](../notebooks/{path.name})" if path else named
    replay = replay or _REPLAY.format(page)
    by_kind = {pair: names for pair, names in _by_kind(root).items() if pair[1] in kinds}
    measured = list(dict.fromkeys(groups.MEASURED_BY[kind] for _, kind in by_kind)) or ["–"]
    cards: dict[str, Took] = {}
    for (card, _), names in by_kind.items():
        cards[card] = cards.get(card, Took()) + _took([root / "figures" / "records" / name for name in names])
    minutes = ", ".join(f"{card}: {time}" for card, time in cards.items()) or "–"
    rests_on = ", ".join(f"`{kind}`" for kind in dict.fromkeys(kind for _, kind in by_kind)) or "–"
    cells = [title + (f" (P{ids}" if ids else ""), replay, "; ".join(measured), minutes, tolerance, rests_on]
    return f"|{'|'.join(cells)}|"


@cache
def _by_kind(root: Path) -> dict[tuple[str, str], list[str]]:
    """Returns the names of the records of each card and kind, in the order of the cards and of `MEASURED_BY`."""
    cards = [folder.name for folder in gpu_folders(root)]
    names: dict[tuple[str, str], list[str]] = {(card, kind): [] for card in cards for kind in groups.MEASURED_BY}
    for name in groups.sums(root):
        card, _, file = name.partition("/")
        if card in cards:
            names[card, groups.kind(file)].append(name)
    return {pair: of_kind for pair, of_kind in names.items() if of_kind}


def _kinds(root: Path, notebook: Path) -> list[str]:
    """Returns the kinds of the measured records that a notebook declares as its inputs."""
    declared = read_json(notebook, "restore it (git checkout)")["metadata"]["medddpm"]["inputs"]
    patterns = [pattern.removeprefix("figures/records/") for pattern in declared]
    read = {
        kind
        for (_, kind), names in _by_kind(root).items()
        for name in names
        if any(fnmatch.fnmatch(name, p) and name.count("/") == p.count("/") for p in patterns)  # as a shell's * does
    }
    return [kind for kind in groups.MEASURED_BY if kind in read]


@cache
def _took_by_path(path: Path) -> Took:
    return took(path)


def _is_table(path: Path) -> bool:
    """Returns whether a record is a table with a description; a released model's training record has its card."""
    return bool(_TABLE.search(path.name)) and not path.with_suffix(".safetensors").exists()


def _took(paths: Sequence[Path]) -> Took:
    """Returns the time that the tables among some records took; Took() of no table is unknown."""
    times = [_took_by_path(path) for path in paths if _is_table(path)]
    return sum(times, Took()) if times else Took(whole=False)


def _judged(root: Path, ids: pd.Series[str]) -> str:
    """Returns the tolerances within which the claims of these names are judged."""
    judged = [read_table(root / "figures" / "records" / name, CLAIMS) for name in _TABLES]
    table = pd.concat([rows[rows["id"].isin(ids)] for rows in judged])
    return _tolerances(table) if len(ids) else "no number is stated"


def _tolerances(table: pd.DataFrame) -> str:
    """Returns the tolerances of some verdicts (schema `CLAIMS`), the largest first: "20% or equal"."""
    each = sorted(table["tolerance"].dropna().unique(), reverse=True)
    return " or ".join("equal" if value == 0 else f"{value:.0%}" for value in each) or "not measurable here"


def _ids(ids: pd.Series[str]) -> str:
    """Writes the names of claims, neighbours as a span: " (P088–P108)"; empty for none."""
    numbers = sorted(int(name[1:]) for name in ids)
    spans = []
    for _, span in itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        ends = [number for _, number in span]
        spans.append("–".join(f"P{number:03}" for number in dict.fromkeys((ends[0], ends[-1]))))
    return f" ({listed(spans)})" if spans else ""


def _shortened(commands: list[str]) -> str:
    """Writes the first of some commands as a cell, cut to `_LONGEST` characters, and how many more there are."""
    every = list(dict.fromkeys(part for command in commands for part in command.split("; ") if part))
    if not every:
        return "not recorded"
    first = every[0] if len(every[0]) <= _LONGEST else every[0][:_LONGEST].rpartition(" ")[0] + " …"
    more = f" and {len(every) - 1} more" if len(every) > 1 else ""
    return f"`{first.replace('|', '')}`{more}"


def _days(paths: Sequence[Path]) -> str:
    """Returns the first and the last day on which some tables were measured."""
    dates: list[str] = []
    for path in paths:
        if _is_table(path):
            rows = pd.read_csv(path, usecols=lambda name: name == "date")
            known = rows["date"].dropna().astype(str).tolist() if "date" in rows else []
            dates += known or [str(read_meta(path)["date"])]
    return _span(dates)


def _span(dates: Sequence[str]) -> str:
    """Writes the first and the last of some dates: "22 November to 1 December 2026"; of no date "not recorded"."""
    if not dates:
        return "not recorded"
    days = sorted(pd.Timestamp(date[:10]) for date in dates)
    ends = dict.fromkeys((f"{days[0].day} {days[0].month_name()}", f"{days[-1].day} {days[-1].month_name()}"))
    return f"{' to '.join(ends)} {days[-1].year}"
