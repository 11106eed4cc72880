"""What `make test-gpu` recorded on each card: which of the tests that need a GPU passed there, failed or were skipped.

The package knows no pytest: `tests/gpu_tests.py` runs the tests and writes the table, here it is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from medddpm.measure.tables import gpu_folders, read_meta, read_table
from study.records.schemas import GPU_TESTS

NONE = "No GPU test run is on record: `make test-gpu` makes one on a machine with a GPU."
OUTCOMES = GPU_TESTS.columns["outcome"].allowed


def file_name(gpus: int = 1) -> str:
    """The record's name in a card's folder: a run on several GPUs runs more tests and does not replace one GPU's."""
    return "gpu_tests.csv" if gpus < 2 else f"gpu_tests_{gpus}_gpus.csv"


def by_file(root: Path) -> pd.DataFrame:
    """How many tests ended how, a row a card and test file, in the order they ran; no rows where none is on record.

    Args:
        root: the repository's root.

    Returns:
        Columns "passed", "failed" and "skipped" (int64), indexed by "card", the records folder's name ("H100", or
        "2 × H100" for a run on two), and "file".

    Raises:
        BadInput: a record does not fit its schema.
    """
    tables = {card: table for card, (table, _) in _recorded(root).items()}
    if not tables:
        index = pd.MultiIndex.from_arrays([[], []], names=["card", "file"])
        return pd.DataFrame(0, index=index, columns=list(OUTCOMES), dtype="int64")
    table = pd.concat(tables, names=["card", None]).reset_index("card")
    counts = table.pivot_table(
        index=["card", "file"], columns="outcome", values="tests", aggfunc="sum", fill_value=0, sort=False
    )
    return counts.reindex(columns=list(OUTCOMES), fill_value=0).astype("int64").rename_axis(columns=None)


def account(root: Path) -> str:
    """What `make test-gpu` found on every card with a record, as Markdown: a line a card, and what was not run and why.

    Args:
        root: the repository's root.

    Returns:
        `NONE` where no card has a record.

    Raises:
        BadInput: a record does not fit its schema, or its description is missing.
    """
    lines = []
    for card, (table, meta) in _recorded(root).items():
        counts = table.groupby("outcome")["tests"].sum()
        found = ", ".join(f"{counts.get(outcome, 0)} {outcome}" for outcome in OUTCOMES)
        lines.append(f"- **{card}**: {found} ({_where(meta)})")
        failed = table.loc[table["outcome"] == "failed", "reason"]
        lines += [f"    - failed: `{name}`" for name in failed]
        skipped = table[table["outcome"] == "skipped"].groupby("reason", sort=False)["tests"].sum()
        lines += [f"    - skipped {count}: {reason}" for reason, count in skipped.items()]
    return "\n".join(lines) or NONE


def _recorded(root: Path) -> dict[str, tuple[pd.DataFrame, dict[str, Any]]]:
    """Table and description of each run by its card, one GPU's first."""
    found = {}
    for folder in gpu_folders(root):
        for path in sorted(folder.glob(f"{Path(file_name()).stem}*.csv"), key=lambda path: (len(path.name), path.name)):
            meta = read_meta(path)
            count = f"{meta['gpus']} × " if meta.get("gpus", 1) > 1 else ""
            found[f"{count}{folder.name}"] = (read_table(path, GPU_TESTS), meta)
    return found


def _where(meta: dict[str, Any]) -> str:
    """The day, the commit, the card and the versions; what the machine did not tell is left out."""
    versions = {"PyTorch": "torch", "CUDA": "cuda", "cuDNN": "cudnn", "driver": "driver", "Triton": "triton"}
    known = [f"{name} {meta[field]}" for name, field in (versions | {"Python": "python"}).items() if meta.get(field)]
    short = str(meta.get("commit") or "")[:10]  # the whole one would not fit a narrow page
    commit = [f"commit {short}" + " and changes" * bool(meta.get("dirty"))] if short else []
    return ", ".join([str(meta["date"])[:10], *commit, meta["gpu"], *known, f"{meta['seconds']:.0f} s"])
