"""Records of synthetic brains, made up: tables as `study judge` and `study trainings` write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from medddpm.measure.schemas import Schema
from medddpm.measure.tables import table_of, write_table
from study.brains.ranges import GROUPS
from study.figures.brains import ANATOMY

SHELLS = [("texture", channel, f"shell {k}") for channel in ("t1", "t2", "flair") for k in range(1, 9)]


def verdicts(samples: str, count: int = 4, shift: float = 0.0) -> list[dict[str, Any]]:
    """Rows of a set; its values lie `shift` above the middle of their range, in halves of it."""
    numbers = [(metric, "all", tissue) for metric, tissue in ANATOMY] + SHELLS
    rows = []
    for subject in range(count):
        for metric, channel, tissue in numbers:
            low, high = (
                (-1.0, 1.0)
                if metric == "texture"
                else (0.4, None)
                if metric in ("dice", "connected")
                else (300.0, 500.0)
            )
            half = ((1.0 if high is None else high) - low) / 2
            value = low + half * (1 + shift)
            known = {"samples": samples, "seed": 1, "subject": subject, "metric": metric, "channel": channel}
            rows.append(
                {**known, "tissue": tissue, "value": value, "low": low, "high": high, "excess": abs(shift),
                 "within": int(abs(shift) <= 1), "note": None}
            )  # fmt: skip
    return rows


def wholes(samples: str, passing: int, count: int = 4) -> list[dict[str, Any]]:
    """Rows of a set of which so many pass each group."""
    return [
        {"samples": samples, "seed": 1, "subject": subject, "group": group, "numbers": 9, "outside": 1,
         "worst": "volume white", "excess": 1.0, "limit": 2.0, "passes": int(subject < passing)}
        for group in GROUPS
        for subject in range(count)
    ]  # fmt: skip


def write(path: Path, rows: list[dict[str, Any]], schema: Schema) -> None:
    """Writes a table with its description."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(table_of(rows, schema), path, schema, {"contrasts": ["t1", "t2", "flair"], "size": [8, 8, 8]})
