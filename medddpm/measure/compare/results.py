"""The table, the picture and the best row of `medddpm compare`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from medddpm.measure.schemas import COMPARED, ERRORS
from medddpm.measure.tables import table_of
from medddpm.measure.timing import columns, digits
from medddpm.measure.tools import COMPARED as COMPARED_TOOLS
from medddpm.measure.tools import OPPONENTS
from medddpm.runtime.files import replacing

SLACK = 1.1
"""How many times autocast's error counts as no worse: two orders of BF16 sums differ by some percent. A choice."""
PLAIN = OPPONENTS[0].slug
"""The tool that speedups are told of: PyTorch as it comes."""


def rows_of(
    results: Sequence[Mapping[str, Any]], file: str, measure: str, missing: Callable[[], Mapping[str, str]]
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Makes the table (schema `COMPARED`): a row for each tool that was measured, now or before, or is missing.

    Args:
        results: of one step; each row has the samples of all rounds.
        file: the reader's.
        measure: "step" or "forward".
        missing: returns why a tool was not measured, by its name on the command line.
    """
    autocast: Mapping[str, float] = next((r["autocast"] for r in results if "autocast" in r), {})
    rounds: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        if "ms" in result:
            rounds.setdefault(result["key"], []).append(result)
    rows, failed = [], missing()
    reports: dict[str, str] = {}
    for tool in COMPARED_TOOLS:
        row: dict[str, Any] = {"file": file, "tool": tool.slug, "change": tool.change, "measure": measure}
        row |= {f"autocast_{name}": digits(autocast.get(name)) for name in ERRORS}
        if measured := rounds.get(tool.slug):
            last = measured[-1]
            row |= columns({**last, "ms": [ms for result in measured for ms in result["ms"]]})
            row |= {"why": last.get("unjudged"), "date": last["date"], **last["machine"]}
            reports |= {tool.slug: last["acceleration"]} if "acceleration" in last else {}
            rows.append(row)
        elif tool.slug in failed:
            rows.append({**row, "samples": 0, "why": failed[tool.slug]})
    return table_of(rows, COMPARED), {"accelerated": reports}


def best(table: pd.DataFrame) -> str | None:
    """Returns the fastest tool whose errors are at most `SLACK` times autocast's; None if there is none.

    An error that is known of no row does not count.
    """
    timed = table[table["median_ms"].notna()]
    for name in _known(timed):
        timed = timed[timed[name] <= SLACK * timed[f"autocast_{name}"]]
    return None if timed.empty else str(timed.sort_values("median_ms")["tool"].iloc[0])


def _known(timed: pd.DataFrame) -> list[str]:
    """Returns the errors that can be judged: autocast's is known, and that of some row."""
    return [name for name in ERRORS if timed[[name, f"autocast_{name}"]].notna().any().all()]


def printed(table: pd.DataFrame) -> str:
    """Returns the table as text, the fastest first, the best marked, and then what was not measured and why."""
    timed = table[table["median_ms"].notna()].sort_values("median_ms")
    chosen = best(table)
    plain = timed.loc[timed["tool"] == PLAIN, "median_ms"].max()  # NaN without such a row
    cells_of: dict[str, Callable[[dict[Hashable, Any]], str]] = {
        "": lambda row: "*" if row["tool"] == chosen else "",
        "tool": lambda row: row["tool"],
        "ms": lambda row: f"{row['median_ms']:.4g}",
        "10 to 90%": lambda row: f"{row['p10_ms']:.4g} to {row['p90_ms']:.4g}",
        "speedup": lambda row: "" if pd.isna(plain) else f"{plain / row['median_ms']:.2f}",
        "GiB": lambda row: "" if pd.isna(row["peak_gib"]) else f"{row['peak_gib']:.3g}",
        "output error": lambda row: _share(row["rel_error_output"]),
        "gradient error": lambda row: _share(row["rel_error_grad"]),
    }
    made = {title: [title, *map(cell, timed.to_dict("records"))] for title, cell in cells_of.items()}
    filled = {title: cells for title, cells in made.items() if any(cells[1:])}
    widths = {title: max(map(len, cells)) for title, cells in filled.items()}
    lines = [
        "  ".join(
            cell.ljust(w) if t in ("", "tool") else cell.rjust(w)
            for cell, (t, w) in zip(line, widths.items(), strict=True)
        )
        for line in zip(*filled.values(), strict=True)
    ]
    for why, rows in table[table["median_ms"].isna()].groupby("why", sort=False):
        lines.append(f"not measured: {', '.join(rows['tool'])}: {why}")
    if _known(timed):  # else `judged` says why there are none
        for why, rows in timed[timed["why"].notna()].groupby("why", sort=False):
            lines.append(f"without errors: {', '.join(rows['tool'])}: {why}")
    return "\n".join(line.rstrip() for line in lines)


def _share(value: float) -> str:
    """Writes an error in percent with two digits; nothing where it is unknown."""
    return "" if pd.isna(value) else "0%" if value == 0 else f"{100 * value:.2g}%"


def judged(table: pd.DataFrame) -> str:
    """Says what the mark in `printed` means, or why nobody can tell errors."""
    timed = table[table["median_ms"].notna()]
    if len(timed) == 1:
        return "One tool was measured, and there is nothing to compare it with."
    words = {"rel_error_output": "outputs", "rel_error_grad": "gradients"}
    known = [f"{_share(timed[f'autocast_{name}'].iloc[0])} of {words[name]}" for name in _known(timed)]
    if not known:
        why = next(iter(timed["why"].dropna()), "float32's outputs and gradients are all zero")
        return f"Errors are unknown: {why}.\n* is the fastest; nothing here tells whether it computes the same."
    mark = f"* is the fastest row with at most {SLACK:g} times these errors."
    if (chosen := best(table)) is None:
        mark = f"No row has at most {SLACK:g} times these errors."
    elif _overlaps(timed, chosen):
        mark += (
            f" Its times overlap those of {PLAIN}: before you change anything, measure again with nothing else running."
        )
    return (
        f"Errors are relative to float32 without TF32; those of BF16 autocast alone are {' and '.join(known)}.\n{mark}"
    )


def _overlaps(timed: pd.DataFrame, chosen: str) -> bool:
    """Returns whether a tool's times reach into those of PyTorch as it comes: its 90th percentile over their 10th."""
    ends = {row["tool"]: (row["p10_ms"], row["p90_ms"]) for row in timed.to_dict("records")}
    return chosen != PLAIN and PLAIN in ends and bool(ends[chosen][1] > ends[PLAIN][0])


def draw(table: pd.DataFrame, title: str, path: Path) -> bool:
    """Draws a bar for each measured tool, with its 10th and 90th percentile and errors; False without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    timed = table[table["median_ms"].notna()].sort_values("median_ms", ascending=False)
    figure = Figure(figsize=(8, 1.4 + 0.34 * len(timed)), layout="constrained")
    FigureCanvasAgg(figure)
    axis, chosen = figure.subplots(), best(table)
    colours = ["#D55E00" if tool == chosen else "#7F7F7F" for tool in timed["tool"]]  # Okabe & Ito's vermilion, grey
    around = [timed["median_ms"] - timed["p10_ms"], timed["p90_ms"] - timed["median_ms"]]
    axis.barh(timed["tool"], timed["median_ms"], color=colours, xerr=around, ecolor="#222222")
    for place, row in enumerate(timed.to_dict("records")):
        errors = ", ".join(_share(row[name]) for name in ERRORS if row[name] >= 0)
        words = f"{row['median_ms']:.4g} ms{errors and f' ({errors})'}"
        axis.annotate(words, (row["p90_ms"], place), (5, 0), textcoords="offset points", va="center", fontsize=8)
    axis.set_xlim(0, 1.5 * float(timed["p90_ms"].max()))
    axis.set_xlabel("ms: median, with the 10th to the 90th percentile (errors of outputs, gradients)")
    axis.set_title(title, fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150)
    return True
