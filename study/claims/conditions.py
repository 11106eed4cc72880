"""The conditions of the paper's measurements beside ours: the run, its window, the software, the cards.

`by_figure.section3` and `by_figure.table1` judge them; this module reads ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from medddpm.errors import BadInput
from medddpm.measure.schemas import CARD, VIEWS
from medddpm.measure.tables import gpu_folders, read_meta, read_table
from study.claims.by_figure import functions_of, section3, table1
from study.claims.by_figure.section3 import Window
from study.claims.by_figure.table1 import PropertyCase
from study.claims.cards import deciding_cards
from study.claims.paper import claims_of
from study.claims.verdicts import Finding
from study.profile.tables import Record, records

SECTION_3, TABLE_1 = functions_of(section3), functions_of(table1)


def configuration(values: Mapping[str, int]) -> dict[str, Finding]:
    """Judges the profiled run's configuration (Section 3.2) by our code's defaults.

    Args:
        values: any of "batch size", "input size", "depth size" and "channels", read from the live code.
    """
    judged = {name: SECTION_3[name](values) for name in ("P051", "P052", "P053", "P054")}
    return {name: finding for name, finding in judged.items() if finding}


def window(root: Path) -> dict[str, Finding]:
    """Judges the profiled launches and the length of the run (Section 3.2) by the newest window of BASE.

    It is that of the first card of `cards.csv` that has one.
    """
    profiled = [r for r in records(root) if (r.table, r.part, r.setting) == ("kernels", "window", "BASE")]
    ours = _window_of(_newest(profiled)) if profiled else None
    return {name: SECTION_3[name](ours) for name in ("P050", "P055", "P056")}


def _window_of(record: Record) -> Window:
    meta = read_meta(record.path)
    steps = re.search(r"--steps (\d+)", meta["command"])
    first = meta["measurement"]["program"]["window_start"]
    return Window(record.gpu, f"{steps[1]} steps" if steps else None, first, meta["launches"])


def software(versions: Mapping[str, str]) -> dict[str, Finding]:
    """Judges the paper's software (Section 3.1) by ours.

    Args:
        versions: any of "PyTorch", "Python", "Nsight Compute", "CUDA Toolkit" and "cuDNN"; the others are not
            measurable.
    """
    return {name: SECTION_3[name](versions) for name in ("P057", "P058", "P059", "P060", "P061")}


def recorded_versions(root: Path) -> dict[str, str]:
    """Returns the versions behind the newest kernels table of the book's views, by the names `software` takes.

    The table is that of the first card of `cards.csv` that has one.
    """
    tables = [r for r in records(root) if r.table == "kernels" and r.part in VIEWS]
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
    """Returns the versions that the repository at `root` pins: "PyTorch" from the lock, "Python" from environment.yml.

    Raises:
        BadInput: a file is missing or lacks the pin.
    """
    return {
        "PyTorch": _pinned(root / "requirements.lock", r"^torch==(\S+)$"),
        "Python": _pinned(root / "environment.yml", r"^\s*- python=([\d.]+)$"),
    }


def cards(paper: pd.DataFrame, root: Path) -> dict[str, Finding]:
    """Judges Table 1, the paper's cards, by figures/records/<card>/card.csv or else by their maker's documents.

    Values that a card's table takes from the paper settle nothing. If the driver does not give a value or there is no
    such card, `sources.csv` decides. Another card's property stands beside.
    """
    ours = {folder.name: _card_of(folder) for folder in gpu_folders(root)}
    return {c.id: TABLE_1[c.id](PropertyCase(c, ours)) for c in claims_of(paper) if c.id in TABLE_1}


def _card_of(folder: Path) -> dict[str, tuple[str, str]]:
    """Returns value and origin by property from a card's table, without the values that it takes from the paper."""
    if not (folder / "card.csv").is_file():
        return {}
    card = read_table(folder / "card.csv", CARD).set_index("property")[["value", "origin"]]
    measured = card[~card["origin"].str.startswith("same architecture")]
    return {str(name): (value, origin) for name, value, origin in measured.itertuples()}


def _newest(candidates: list[Record]) -> Record:
    """Returns the newest record of the first card of `cards.csv` that has any."""
    order = {str(gpu): place for place, gpu in enumerate(deciding_cards().index)}
    first = min(order.get(record.gpu, len(order)) for record in candidates)
    of_first = [record for record in candidates if order.get(record.gpu, len(order)) == first]
    return max(of_first, key=lambda record: str(read_meta(record.path).get("date", "")))


def _pinned(path: Path, pattern: str) -> str:
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    matched = re.search(pattern, text, re.MULTILINE)
    if not matched:
        raise BadInput(path, "pins no version where one is looked for", "restore it (git checkout)")
    return matched.group(1)
