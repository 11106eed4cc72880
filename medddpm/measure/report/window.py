"""The text, the table and the picture of `medddpm window`: a window beside its step, and every other start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from medddpm.errors import BadInput, printable
from medddpm.measure.profile import windows
from medddpm.measure.report import starts
from medddpm.measure.report.folder import Profile
from medddpm.measure.report.starts import TITLES, Ordered
from medddpm.measure.schemas import PHASES
from medddpm.measure.tables import check_table, write_table
from medddpm.runtime.files import check_output, replacing

SUFFIXES = (".csv", ".csv.gz", ".png", ".svg")
MOST, LONGEST_NAME = 8, 40  # phases or families of most time that are listed; characters of a phase's name
SHOWN = ("duration_ns", "instructions", "tensor_pct", "dram_pct")  # panels of the picture
FLOOR, CEILING = 1e-3, 1e6  # least and largest ratio that the picture shows
POINTS = 600  # parts of a curve whose least and most are drawn
LINE, BAND = "#D55E00", "#009E73"  # Okabe & Ito's vermilion and green, legible on white and on black


def printed(profile: Profile, order: Ordered, start: int, count: int) -> str:
    """Describes a window beside its step, and what windows of other starts say."""
    step, run = order.step["duration_ns"].sum(), order.run["duration_ns"].iloc[start : start + count].sum()
    counted = "the program's first launch" if profile.run is not None else "the step's first launch"
    known = profile.known()
    lines = [
        f"{printable(profile.name)} on {printable(profile.card)}: launches {start} to {start + count - 1}, from "
        f"{counted}; the step has {len(order.step)} kernel launches.",
        f"The window has {_percent(count / len(order.step))} of the launches and {_percent(run / step)} of the step's "
        f"time ({run / 1e6:.4g} of {step / 1e6:.4g} ms).",
        f"{_percent(known)} of the step's time is in launches with counters."
        if known
        else "There are no counters, only times: Nsight Compute with open counters brings them.",
    ]
    for by in ("phase", "family"):
        lines += ["", *_held(starts.held(order, start, count, by), by)]
    lines += ["", *_answers(starts.answers(order, start, count))]
    ratios = starts.curve(order, count)
    title = f"every start ({len(ratios)}), ÷ step"
    return "\n".join([*lines, "", *_spread(starts.spread(ratios), title)])


def printed_against(names: Sequence[str], order: Ordered, base: Ordered, start: int, count: int) -> str:
    """Describes the ratio of two programs by windows of the same start, and by whole steps."""
    ratios, whole = starts.against(order, base, count)
    if ratios.empty:
        return f"No window of {count} launches lies within the first backward pass of {names[1]}."
    here = ratios.set_index("start").reindex([start]).iloc[0]
    rows = [
        [TITLES[name], _number(float(here[name])), _number(float(whole[name]))]
        for name in ratios.columns.drop("start")
        if whole[name] > 0
    ]
    told = starts.spread(ratios[["start", *(n for n in ratios.columns.drop("start") if whole[n] > 0)]], whole)
    head = [f"{printable(names[0])} ÷ {printable(names[1])}", f"window from {start}", "whole steps"]
    return "\n".join([*_table([head, *rows]), "", *_spread(told, f"every start ({len(ratios)})", "right")])


def _held(table: pd.DataFrame, by: str) -> list[str]:
    table = table.rename(index=lambda name: printable(str(name)[:LONGEST_NAME]))
    shown, rest = table.iloc[:MOST], table.iloc[MOST:]
    rows = [[by, "launches", "of the step's", "of the window's time", "of the step's", "part of it held"]]
    rows += [
        [str(name), str(int(row["launches"])), str(int(row["of_launches"])), _percent(row["share"]),
         _percent(row["of_share"]), _percent(row["part"])]
        for name, row in shown.iterrows()
    ]  # fmt: skip
    unseen = table[(table["launches"] == 0) & (table["of_share"] > 0)]
    lines = _table(rows)
    if len(rest):
        lines.append(f"… and {len(rest)} more, {_percent(rest['of_share'].sum())} of the step's time")
    if len(unseen):
        names = ", ".join(map(str, unseen.index[:3])) + ", …" * (len(unseen) > 3)
        lines.append(f"not in the window: {_percent(unseen['of_share'].sum())} of the step's time ({names})")
    return lines


def _answers(table: pd.DataFrame) -> list[str]:
    rows = [["counter", "sum held", "window", "step", "÷", "by time: window", "step", "÷"]]
    for name, row in table.iterrows():
        by_time = [f"{weight}_by_time" for weight in ("window", "step", "ratio")] if name in starts.RATES else []
        values = [_number(row[column]) for column in ("window", "step", "ratio", *by_time)]
        rows.append([TITLES[str(name)], _percent(row["part"]), *values, *[""] * (3 - len(by_time))])
    return _table(rows)


def _spread(table: pd.DataFrame, title: str, right: str = "right") -> list[str]:
    rows = [[title, "least", "from", "median", "most", "from", f"within {starts.CLOSE:.0%}"]]
    rows += [
        [TITLES[str(name)], _number(row["least"]), f"{row['least_at']:.0f}", _number(row["median"]),
         _number(row["most"]), f"{row['most_at']:.0f}", _percent(row[right])]
        for name, row in table.iterrows()
    ]  # fmt: skip
    return _table(rows)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lays out cells as lines: the first column to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        first, *rest = zip(row, widths, strict=True)
        lines.append("  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]).rstrip())
    return lines


def _number(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.3g}"


def _percent(share: float) -> str:
    return "" if np.isnan(share) else f"{100 * share:.3g}%"


def check(path: Path) -> None:
    """Checks, before work, that `write` may write to `path`.

    Raises:
        BadInput: it may not, or its name has none of the `SUFFIXES`.
    """
    if not path.name.endswith(SUFFIXES):
        raise BadInput(path, "its name tells no kind of file", f"let it end in {', '.join(SUFFIXES)}")
    if path.name.endswith((".csv", ".csv.gz")):
        check_table(path)
    else:
        check_output(path, ours=lambda at: at.suffix in SUFFIXES, force=True)


def write(path: Path, order: Ordered, start: int, count: int, meta: Mapping[str, Any]) -> Path:
    """Writes the curve of `starts.curve` as a table or a picture, by the suffix; returns the path written."""
    ratios = starts.curve(order, count)
    if path.name.endswith((".csv", ".csv.gz")):
        return write_table(ratios, path, starts.CURVE, meta)
    import matplotlib as mpl

    figure = drawn(ratios, order.run, start, count)
    with replacing(path) as temporary, mpl.rc_context({"svg.hashsalt": "medddpm"}):
        figure.savefig(temporary, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path


def drawn(ratios: pd.DataFrame, run: pd.DataFrame, start: int, count: int) -> Any:
    """Draws a window's answer divided by the step's over the launch that the window begins with.

    Args:
        ratios: of `starts.curve`.
        run: the launches that starts count, of `starts.ordered`.
        start, count: the window that is marked.

    Returns:
        matplotlib's figure.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = [name for name in SHOWN if ratios[name].notna().any()] or ["duration_ns"]
    figure = Figure(figsize=(8, 0.9 + 1.15 * len(shown)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    for axis, name in zip(axes, shown, strict=True):
        _shade(axis, windows.phases(run), named=axis is axes[0])
        axis.axhspan(1 - starts.CLOSE, 1 + starts.CLOSE, color=BAND, alpha=0.35, linewidth=0)
        x, y = thinned(ratios["start"].to_numpy(float), ratios[name].to_numpy(float))
        axis.plot(x, y, color=LINE, linewidth=1.0)
        axis.axvline(start, color="#222222", linewidth=0.8, linestyle=":")
        low, high = span(y)
        axis.set(yscale="log", ylim=(low / 1.3, 1.3 * high))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.set_title(f"{TITLES[name]}: window ÷ step", loc="left", fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel(f"first launch of a window of {count}")
    axes[-1].set_xlim(0, max(1, int(ratios["start"].max())))
    return figure


def _shade(axis: Any, stretches: pd.DataFrame, named: bool) -> None:
    """Shades every second phase, and names those that are long enough."""
    for place, (phase, first, last) in enumerate(long_phases(stretches)):
        axis.axvspan(first, last, color="#222222", alpha=0.12 if place % 2 else 0.0, linewidth=0)
        if named and phase in PHASES and last - first > 0.15 * int(stretches["end"].iloc[-1]):
            axis.annotate(
                phase, ((first + last) / 2, 1), (0, -2), xycoords=("data", "axes fraction"),
                textcoords="offset points", ha="center", va="top", fontsize=8,
            )  # fmt: skip


def long_phases(stretches: pd.DataFrame) -> list[tuple[str, int, int]]:
    """Returns the stretches of `windows.phases` that have a hundredth of the launches: name, begin, end."""
    end = int(stretches["end"].iloc[-1])
    rows = stretches[stretches["end"] - stretches["begin"] >= 0.01 * end]
    return [(str(phase), int(first), int(last)) for phase, first, last in rows.itertuples(index=False)]


def span(y: NDArray[np.float64]) -> tuple[float, float]:
    """Returns the least and the most of a picture's axis of ratios: those of the curve, with room around 1."""
    return float(np.nanmin([0.5, *y])), float(np.nanmax([2.0, *y]))


def thinned(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns a curve within `FLOOR` and `CEILING`: the least and the most of each of at most `POINTS` parts."""
    y = np.clip(y, FLOOR, CEILING)
    if len(x) <= 2 * POINTS:
        return x, y
    parts = np.array_split(np.nan_to_num(y, nan=FLOOR), POINTS)
    begins = np.cumsum([0, *(len(part) for part in parts[:-1])])
    ends = [sorted({at + part.argmin(), at + part.argmax()}) for at, part in zip(begins, parts, strict=True)]
    chosen = np.concatenate(ends).astype(int)
    return x[chosen], y[chosen]
