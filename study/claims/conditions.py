"""The conditions of the paper's measurements beside ours: the run, its window, the software, the cards.

Each finding is that of a claim whose rule in `rules.csv` is "configuration", "window", "software" or "card".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pandas as pd

from medddpm.errors import BadInput
from medddpm.measure.schemas import CARD, VIEWS
from medddpm.measure.tables import gpu_folders, read_meta, read_table
from study.claims import rules
from study.claims.paper import Claim, claims_of
from study.claims.verdicts import Finding
from study.profile.tables import Record, found

CITED = "{document}, {place}: {value} (read at {read_at})."


def configuration(values: Mapping[str, int]) -> dict[str, Finding]:
    """The profiled run's configuration (Section 3.2) against our code's defaults.

    Args:
        values: any of "batch size", "input size", "depth size" and "channels", read from the live code.
    """
    return _findings("configuration", "configuration", {name: str(value) for name, value in values.items()})


def window(root: Path) -> dict[str, Finding]:
    """Which launches are profiled, of how long a run (Section 3.2): as the newest window of BASE was taken.

    That of the first of `cards` that has one.
    """
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
    """The versions that the newest kernels table of the book's views was taken with, by the names `software` takes.

    That of the first of `cards` that has one.
    """
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
    """Table 1: the paper's cards against figures/records/<card>/card.csv, or else against what their maker states.

    What a card's own table takes from the paper settles nothing; where the driver is silent or no such card is here,
    `sources.csv` decides. A number is compared within the rule's tolerance, since a data sheet rounds; text must be
    equal. Another card's property stands beside.
    """
    ours = {folder.name: _card_of(folder) for folder in gpu_folders(root)}
    beside = {str(other): str(card) for card, other in rules.cards()["stands_in_for"].items()}
    settled = {}
    for claim in claims_of(paper):
        if claim.rule.rule == "card":
            other = beside.get(claim.gpu, "")
            value, _ = ours.get(other, {}).get(claim.rule.of[0], (None, ""))
            found = _property(claim, ours.get(claim.gpu, {}))
            settled[claim.id] = replace(found, other_card=other, other_value=value) if value else found
    return settled


def _property(claim: Claim, own: Mapping[str, tuple[str, str]]) -> Finding:
    """One property by the card's own driver, and by the document that states it.

    Args:
        claim: of Table 1.
        own: value and origin of each property that the card's driver tells; empty without such a card.
    """
    rule = claim.rule
    (name,) = rule.of
    source = rules.sources().get(claim.id)
    cited = CITED.format(**source) + (f" {source['note']}." if source["note"] else "") if source else ""
    if name in own:
        value, origin = own[name]
        derived = origin.removeprefix("driver").removeprefix("derived: ")
        told = {"derived": f", from {derived}" if derived else "", "cited": f" {cited}" if cited else ""}
        reason = rule.reason.format(gpu=claim.gpu, **told)
        return Finding("card", reason, value, rule.tolerance, claim.gpu)
    if source:
        return Finding("source", cited, source["value"], rule.tolerance)
    return Finding("source", rule.missing.format(gpu=claim.gpu, of=name))


def _card_of(folder: Path) -> dict[str, tuple[str, str]]:
    """Value and origin by property from a card's own table, less what it takes from the paper."""
    if not (folder / "card.csv").is_file():
        return {}
    card = read_table(folder / "card.csv", CARD).set_index("property")[["value", "origin"]]
    own = card[~card["origin"].str.startswith("same architecture")]
    return {str(name): (value, origin) for name, value, origin in own.itertuples()}


def _newest(listed: list[Record]) -> Record:
    """The newest record of the first of `cards` that has any."""
    order = {str(gpu): place for place, gpu in enumerate(rules.cards().index)}
    first = min(order.get(record.gpu, len(order)) for record in listed)
    of_first = [record for record in listed if order.get(record.gpu, len(order)) == first]
    return max(of_first, key=lambda record: str(read_meta(record.path).get("date", "")))


def _pinned(path: Path, pattern: str) -> str:
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    matched = re.search(pattern, text, re.MULTILINE)
    if not matched:
        raise BadInput(path, "pins no version where one is looked for", "restore it (git checkout)")
    return matched.group(1)
