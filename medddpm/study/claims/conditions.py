"""The conditions of the paper's measurements beside ours: the run, its window, the software, the cards.

Each finding is that of a claim whose rule in `rules.csv` is "configuration", "window", "software" or "card".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from medddpm.errors import BadInput
from medddpm.study.claims import rules
from medddpm.study.claims.paper import claims_of
from medddpm.study.claims.verdicts import Finding
from medddpm.study.profile.tables import Record, found
from medddpm.study.records.schemas import CARD, VIEWS
from medddpm.study.records.tables import gpu_folders, read_meta, read_table


def configuration(values: Mapping[str, int]) -> dict[str, Finding]:
    """The profiled run's configuration (Section 3.2) against our code's defaults.

    Args:
        values: any of "batch size", "input size", "depth size" and "channels", read from the live code.
    """
    return _findings("configuration", "configuration", {name: str(value) for name, value in values.items()})


def window(root: Path) -> dict[str, Finding]:
    """Which launches are profiled, of how long a run (Section 3.2): as the newest window of BASE was taken."""
    profiled = [r for r in found(root) if (r.table, r.part, r.setting) == ("kernels", "window", "BASE")]
    if not profiled:
        return _findings("window", "configuration", {})
    newest = _newest(profiled)
    meta = read_meta(newest.path)
    begin, count = meta["measurement"]["program"]["window_start"], meta["launches"]
    steps = re.search(r"--steps (\d+)", meta["command"])
    values = {"steps": f"{steps[1]} steps" if steps else None, "first launch": str(begin), "launches": str(count)}
    return _findings("window", "configuration", values, gpu=newest.gpu, end=begin + count)


def software(versions: Mapping[str, str]) -> dict[str, Finding]:
    """The paper's software (Section 3.1) against ours.

    Args:
        versions: any of "PyTorch", "Python", "Nsight Compute", "CUDA Toolkit" and "cuDNN"; the others are not
            measurable.
    """
    return _findings("software", "software", versions)


def _findings(rule: str, view: str, values: Mapping[str, str | None], **facts: object) -> dict[str, Finding]:
    """A finding for each claim of one rule whose value is given, or whose row says what a missing value means."""
    settled = {}
    for row in rules.by_id().values():
        if row.rule == rule and (row.of[0] in values or row.missing):
            reason = row.reason if row.of[0] in values else row.missing
            settled[row.id] = Finding(view, reason.format(**facts), values.get(row.of[0]))
    return settled


def recorded_versions(root: Path) -> dict[str, str]:
    """The versions that the newest kernels table of the book's views was taken with, by the names `software` takes."""
    tables = [r for r in found(root) if r.table == "kernels" and r.part in VIEWS]
    if not tables:
        return {}
    meta = read_meta(_newest(tables).path)
    fields = {"PyTorch": "torch", "Python": "python", "Nsight Compute": "ncu", "CUDA Toolkit": "cuda"}
    versions = {name: str(meta[field]) for name, field in fields.items() if meta.get(field)}
    if number := meta.get("cudnn"):  # 91900 is 9.19.0; before 9, 8902 was 8.9.2
        major, rest = divmod(int(number), 10_000 if int(number) >= 90_000 else 1_000)
        versions["cuDNN"] = f"{major}.{rest // 100}.{rest % 100}"
    return versions


def pinned_versions(root: Path) -> dict[str, str]:
    """The versions that the repository at `root` pins: "PyTorch" from the lock, "Python" from environment.yml.

    Raises:
        BadInput: a file is missing or pins no such thing.
    """
    return {
        "PyTorch": _pinned(root / "requirements.lock", r"^torch==(\S+)$"),
        "Python": _pinned(root / "environment.yml", r"^\s*- python=([\d.]+)$"),
    }


def cards(paper: pd.DataFrame, root: Path) -> dict[str, Finding]:
    """Table 1: the paper's cards against figures/records/<card>/card.csv, where we have the card.

    What such a table takes from the paper settles nothing. A number derived from clocks is compared within the rule's
    tolerance, since boards of one name are sold at several clocks; anything else must be equal.
    """
    ours = {folder.name: _card_of(folder) for folder in gpu_folders(root)}
    stand_ins = {str(other): str(card) for card, other in rules.cards()["stands_in_for"].items()}
    settled = {}
    for claim in claims_of(paper):
        if claim.rule.rule == "card":
            settled[claim.id] = _property(claim.rule, claim.gpu, stand_ins.get(claim.gpu, ""), ours)
    return settled


def _property(rule: rules.Rule, gpu: str, stand_in: str, ours: Mapping[str, Mapping[str, tuple[str, str]]]) -> Finding:
    (name,) = rule.of
    if gpu not in ours:
        kin = ours.get(stand_in, {}).get(name)
        beside = f"; of the {stand_in} we have {kin[0]} ({kin[1]})" if kin else ""
        return Finding("card", rule.missing.format(gpu=gpu, of=name, beside=beside))
    if name not in ours[gpu]:
        return Finding("card", f"the {gpu}'s driver does not tell its {name}")
    value, origin = ours[gpu][name]
    tolerance = rule.tolerance if origin.startswith("derived") else 0.0
    return Finding("card", rule.reason.format(gpu=gpu, origin=origin), value, tolerance)


def _card_of(folder: Path) -> dict[str, tuple[str, str]]:
    """Value and origin by property from a card's own table, less what it takes from the paper."""
    if not (folder / "card.csv").is_file():
        return {}
    card = read_table(folder / "card.csv", CARD).set_index("property")[["value", "origin"]]
    own = card[~card["origin"].str.startswith("same architecture")]
    return {str(name): (value, origin) for name, value, origin in own.itertuples()}


def _newest(listed: list[Record]) -> Record:
    return max(listed, key=lambda record: str(read_meta(record.path).get("date", "")))


def _pinned(path: Path, pattern: str) -> str:
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    matched = re.search(pattern, text, re.MULTILINE)
    if not matched:
        raise BadInput(path, "pins no version where one is looked for", "restore it (git checkout)")
    return matched.group(1)
