"""The paper's claims that nobody has to profile for: its settings, its software and its cards (Sections 2.2 and 3)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from medddpm.errors import BadInput
from medddpm.study.claims import STAND_IN, TOLERANCE, Finding
from medddpm.study.kernel_records import Record, found
from medddpm.study.records import CARD, gpu_folders, read, read_meta


def configuration(values: Mapping[str, int]) -> dict[str, Finding]:
    """The profiled run's settings (Section 3.2) against the values our code defaults to.

    Args:
        values: any of "batch size", "input size", "depth size" and "channels", read from the live code.
    """
    ids = {"batch size": "P051", "input size": "P052", "depth size": "P053", "channels": "P054"}
    reason = "the default of this package's own training and network"
    return {ids[name]: Finding("configuration", reason, str(value)) for name, value in values.items()}


def window(root: Path) -> dict[str, Finding]:
    """The launches that are profiled, and of how long a run (Section 3.2), as the newest window of BASE was taken."""
    profiled = [r for r in found(root) if (r.table, r.part, r.config) == ("kernels", "window", "BASE")]
    if not profiled:
        reason = "there is no record of a window; medddpm profile on a GPU, its folder committed, settles it"
        return {identity: Finding("configuration", reason) for identity in ("P050", "P055", "P056")}
    meta = read_meta(_newest(profiled).path)
    begin, count = meta["measurement"]["program"]["window_start"], meta["launches"]
    steps = re.search(r"--steps (\d+)", meta["command"])
    taken = f"as the {_newest(profiled).gpu}'s windows were taken"
    return {
        "P050": Finding(
            "configuration",
            f"a run of that many steps is enough: the window ends at launch {begin + count}, within the first step, "
            "and what follows it is never profiled, 25 epochs or not",
            f"{steps[1]} steps" if steps else None,
        ),
        "P055": Finding("configuration", taken, str(begin)),
        "P056": Finding("configuration", taken, str(count)),
    }


def software(versions: Mapping[str, str]) -> dict[str, Finding]:
    """The paper's software (Section 3.1) against ours.

    Args:
        versions: any of "PyTorch", "Python", "Nsight Compute", "CUDA Toolkit" and "cuDNN"; what is missing of them
            cannot be told.
    """
    ids = {"PyTorch": "P057", "Python": "P058", "Nsight Compute": "P059", "CUDA Toolkit": "P060", "cuDNN": "P061"}
    reason = "the book is kept on current releases; kernels chosen by others may differ from the paper's"
    unknown = "no record of a GPU's says it; medddpm profile on one, its folder committed, settles it"
    return {
        identity: Finding("software", reason if name in versions else unknown, versions.get(name))
        for name, identity in ids.items()
    }


def recorded_versions(root: Path) -> dict[str, str]:
    """The versions that the newest kernels table of any machine was taken with, by the names `software` takes."""
    tables = [r for r in found(root) if r.table == "kernels"]
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
    """The versions the repository at `root` pins for everybody: "PyTorch" from the lock, "Python" from environment.yml.

    Raises:
        BadInput: a file is missing or pins no such thing.
    """
    return {
        "PyTorch": _pinned(root / "requirements.lock", r"^torch==(\S+)$"),
        "Python": _pinned(root / "environment.yml", r"^\s*- python=([\d.]+)$"),
    }


def cards(paper: pd.DataFrame, root: Path) -> dict[str, Finding]:
    """Table 1: what is stated of the paper's cards, against figures/records/<card>/card.csv where there is that card.

    What a table takes from the paper itself settles nothing. A number derived from clocks is compared within
    `TOLERANCE`, since boards of one name are sold at several clocks; anything else must be equal.
    """
    table = paper[(paper["figure"] == "Table 1") & (paper["subject"] == "GPU")]
    said = {folder.name: _card_of(folder) for folder in gpu_folders(root)}
    keys = zip(table["id"], table["gpu"], table["metric"], strict=True)
    return {identity: _property(gpu, metric, said) for identity, gpu, metric in keys}


def _property(gpu: str, metric: str, said: Mapping[str, Mapping[str, tuple[str, str]]]) -> Finding:
    if gpu not in said:
        kin = said.get(STAND_IN.get(gpu, ""), {}).get(metric)
        beside = f"; of the {STAND_IN[gpu]} we have {kin[0]} ({kin[1]})" if kin else ""
        return Finding("card", f"no {gpu} here, and this is its maker's statement about its {metric}{beside}")
    if metric not in said[gpu]:
        return Finding("card", f"the {gpu}'s driver does not tell its {metric}")
    value, origin = said[gpu][metric]
    return Finding("card", f"of the {gpu} here: {origin}", value, TOLERANCE if origin.startswith("derived") else 0.0)


def _card_of(folder: Path) -> dict[str, tuple[str, str]]:
    """What a card's own table says, value and origin by property, less what it takes from the paper."""
    if not (folder / "card.csv").is_file():
        return {}
    card = read(folder / "card.csv", CARD)
    own = card[~card["origin"].str.startswith("same architecture")]
    return {
        name: (value, origin) for name, value, origin in zip(own["property"], own["value"], own["origin"], strict=True)
    }


def _newest(listed: list[Record]) -> Record:
    return max(listed, key=lambda record: str(read_meta(record.path).get("date", "")))


def _pinned(path: Path, pattern: str) -> str:
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    matched = re.search(pattern, text, re.MULTILINE)
    if not matched:
        raise BadInput(path, "pins no version where one is looked for", "restore it (git checkout)")
    return matched.group(1)
