"""The bench's figures: the ladder, the roofline, what remains, other people's networks, memory, samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter

from study.bench.sentences import exact, tool
from study.bench.settings import BENCH_SETTINGS
from study.figures.style import KIND_COLOURS, SETTING_COLOURS, name_rows, new_figure
from study.parity.samplers import SAMPLER_NAMES

# Settings that no other figure shows have the colour of their kind: Okabe & Ito's, and a light tone of FAST's.
ORDINARY_COLOUR, COMPILED_COLOUR, PARTLY_FAST_COLOUR = "#56B4E9", "#CC79A7", "#F0A27B"
CEILING_COLOUR = "#777777"
GROUP_COLOURS = KIND_COLOURS | {"convolution": KIND_COLOURS["convolution, forward"]}


def colour_of(setting: str) -> str:
    """Returns the colour of a setting of the bench: its own if every figure shows it, else that of its kind."""
    if setting in SETTING_COLOURS:
        return SETTING_COLOURS[setting]
    bench = BENCH_SETTINGS[setting]
    if bench.reader:
        return SETTING_COLOURS["FAST"]
    return PARTLY_FAST_COLOUR if bench.switches.fast else COMPILED_COLOUR if bench.compiled else ORDINARY_COLOUR


def steps_figure(rows: Mapping[str, pd.DataFrame]) -> Figure:
    """Draws a dot a setting for a training step, labelled with its time and its gain over BASE; a panel for each card.

    Args:
        rows: by card, rows of `study.bench.tables.by_setting`. The order is that of the first card; settings of
            other cards alone follow.
    """
    settings = list(dict.fromkeys(str(name) for table in rows.values() for name in table.index))
    figure = new_figure(height=0.9 + 0.2 * len(settings))
    axes = np.atleast_1d(figure.subplots(1, len(rows), sharey=True))
    for axis, (card, table) in zip(axes, rows.items(), strict=True):
        _time_dots(axis, table.reindex(settings))
        axis.set_title(card)
    figure.supxlabel(
        "training step, median, ms; line: 10th to 90th percentile; ×: times as fast as BASE",
        fontsize=axes[0].xaxis.label.get_fontsize(),
    )
    for axis in axes:
        name_rows(axis, [_label(name) for name in settings])
    return figure


def _label(setting: str) -> str:
    change = BENCH_SETTINGS[setting].change
    return f"{setting}: {change}" if setting in SETTING_COLOURS else change


def _time_dots(axis: Axes, table: pd.DataFrame) -> None:
    times = table["step_ms"]
    left = float(times.min()) / 1.5
    for place, (setting, row) in enumerate(table.iterrows()):
        time = float(row["step_ms"])
        if np.isnan(time):
            axis.text(left * 1.05, place, "–", va="center", fontsize=7)
            continue
        _dot(axis, time, place, str(setting))
        axis.plot([row["step_p10_ms"], row["step_p90_ms"]], [place, place], color="black", linewidth=0.8, zorder=4)
        end = max(time, float(row["step_p90_ms"]))
        gain = "" if np.isnan(row["step_gain"]) or setting == "BASE" else f"  {exact(row['step_gain'])}×"
        axis.annotate(f"{exact(time)}{gain}", (end, place), (6, 0), textcoords="offset points", va="center", fontsize=7)
    _log(axis, left, float(times.max()) * 6)
    axis.grid(axis="x", color="#EEEEEE")


def _dot(axis: Axes, value: float, place: int, setting: str) -> None:
    """Draws a value on a logarithmic axis, on which a bar's length would mean nothing."""
    axis.plot(value, place, "o", color=colour_of(setting), markersize=6, zorder=3)


def _log(axis: Axes, low: float, high: float) -> None:
    axis.set_xscale("log")
    axis.set_xlim(low, high)
    axis.xaxis.set_major_locator(LogLocator())
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter(NullFormatter())


def roofline_figure(points: pd.DataFrame, limits: Mapping[str, float], card: str) -> Figure:
    """Draws achieved rate against arithmetic intensity, under the ceilings measured in the same run.

    Args:
        points: of `study.bench.tables.roofline`.
        limits: "copy" in GB/s; "fp32", "tf32", "bf16" in TFLOP/s.
        card: the card of the measurement.
    """
    figure = new_figure(height=3.4, width=5.6)
    axis = figure.subplots()
    low = min(10.0, float(points["intensity"].min()) / 2)
    high = max(4e3, float(points["intensity"].max()) * 3)
    for name, rate in limits.items():
        if name == "copy":
            continue
        ridge = 1e3 * rate / limits["copy"]  # the intensity, FLOP/byte, from which the products' rate is the limit
        axis.plot([low, ridge, high], [low * limits["copy"] / 1e3, rate, rate], color=CEILING_COLOUR, linewidth=0.9)
        axis.annotate(
            f"{name.upper()} products {rate:.0f} TFLOP/s", (high, rate), (-2, 2), textcoords="offset points",
            ha="right", va="bottom", fontsize=7, color=CEILING_COLOUR,
        )  # fmt: skip
    axis.annotate(
        f"copy {limits['copy'] / 1e3:.2f} TB/s", (low, low * limits["copy"] / 1e3), (4, 0),
        textcoords="offset points", va="top", fontsize=7, color=CEILING_COLOUR,
    )  # fmt: skip
    for point in points.to_dict("records"):
        x, y, setting = float(point["intensity"]), float(point["tflops"]), str(point["setting"])
        axis.plot(x, y, "o", color="white", markersize=12, zorder=2)  # breaks a ceiling that is not the setting's own
        axis.plot(x, y, "o", color=colour_of(setting), markersize=5, zorder=3)
        axis.annotate(setting, (x, y), (6, -4), textcoords="offset points", va="top", fontsize=7, color="black")
    axis.set(yscale="log", ylim=(float(points["tflops"].min()) / 1.6, None))  # room for a name beneath its dot
    _log(axis, low, high)
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set(xlabel="FLOPs of the network per byte of DRAM traffic", ylabel="TFLOP/s")
    axis.set_title(card, loc="left")
    return figure


LEAST_MS = 0.1  # parts of a step that take less are drawn as one


def remaining_figure(parts: pd.DataFrame, card: str) -> Figure:
    """Draws a bar for each part of FAST's step, with a line at its floor.

    Args:
        parts: of `study.bench.tables.remaining`.
        card: the card of the measurement.
    """
    shown = parts[parts["ms"] >= LEAST_MS]
    rest = parts[parts["ms"] < LEAST_MS]
    figure = new_figure(height=0.95 + 0.2 * (len(shown) + (not rest.empty)), width=5.6)
    axis = figure.subplots()
    for place, (_, row) in enumerate(shown.iterrows()):
        axis.barh(place, row["ms"], 0.72, color=GROUP_COLOURS[row["group"]])
        floor = row["floor_ms"]
        text = f"{row['ms']:.2f}"
        if not np.isnan(floor):
            axis.plot([floor, floor], [place - 0.42, place + 0.42], color="black", linewidth=1.4, zorder=3)
            text += f", floor {floor:.2f}"
        end = np.nanmax([row["ms"], floor])
        axis.annotate(text, (end, place), (3, 0), textcoords="offset points", va="center", fontsize=7)
    names = [str(name) for name in shown.index]
    if not rest.empty:
        axis.barh(len(shown), rest["ms"].sum(), 0.72, color=GROUP_COLOURS["other"])
        axis.annotate(
            f"{rest['ms'].sum():.2f}", (rest["ms"].sum(), len(shown)), (3, 0), textcoords="offset points",
            va="center", fontsize=7,
        )  # fmt: skip
        names.append(f"{len(rest)} smaller")
    name_rows(axis, names)
    axis.margins(x=0.25)
    axis.set_xlim(0, None)
    axis.set_xlabel("time in a step, ms; black line: floor")
    axis.set_title(
        f"{card}, FAST: kernels of a step: {parts['ms'].sum():.1f} ms; floors: {parts['floor_ms'].sum():.1f} ms",
        loc="left",
    )
    groups = dict.fromkeys(shown["group"].astype(str))
    axis.legend(handles=[Patch(color=GROUP_COLOURS[group], label=group) for group in groups], loc="lower right")
    return figure


def others_figure(table: pd.DataFrame, card: str) -> Figure:
    """Draws a bar a network, the longest first: `accelerate` against the best of ordinary tools, in times; a line at 1.

    A ring marks `graphed_step`, and stands alone where `accelerate` was not measured; a network without either is not
    drawn. Where there are several runs, a line goes from the least to the most of `accelerate`. To the right are both
    times in ms, and the best tool.

    Args:
        table: of `study.bench.tables.others`.
        card: the card of the measurement.
    """
    table = table[table["ratio"].notna() | table["step_ratio"].notna()]
    table = table.sort_values("ratio", ascending=False, kind="stable")
    figure = new_figure(height=0.9 + 0.24 * len(table))
    axis = figure.subplots()
    axis.set_xscale("log")
    beside = []
    for place, (_, row) in enumerate(table.iterrows()):
        alone, graphed = float(row["ratio"]), float(row["step_ratio"])
        if not np.isnan(alone):
            axis.barh(place, alone - 1, 0.6, left=1, color=SETTING_COLOURS["FAST"])
        axis.plot([row["ratio_least"], row["ratio_most"]], [place, place], color="black", linewidth=0.9)
        axis.plot(graphed, place, "o", markersize=4, markerfacecolor="white", color="black", markeredgewidth=0.9)
        ours = float(row["step_ms"]) if np.isnan(alone) else float(row["accelerate_ms"])
        theirs = float(row["best_ms"])
        best = tool(BENCH_SETTINGS[row["best"]], short=True).replace("`", "")
        beside.append(f"{exact(theirs)} → {exact(ours)} ms  ({best})")
    axis.axvline(1, color="black", linewidth=0.8)
    name_rows(axis, list(table["title"]))
    right = axis.secondary_yaxis("right")
    right.set_yticks(range(len(table)), beside)
    right.spines["right"].set_visible(False)
    right.tick_params(axis="y", length=0)
    ratios = table[["ratio", "step_ratio", "ratio_least"]].to_numpy(dtype=float)
    least, most = float(np.nanmin(ratios)), float(np.nanmax(ratios))
    low, high = min(0.85, 0.95 * least), max(1.1, 1.05 * most)
    fine = (0.75, 1.25) if high < 4 else ()  # else their labels overlap
    ticks = [tick for tick in (0.5, 1, 1.5, 2, 4, 8, 16, 32, *fine) if low < tick < high]
    axis.set_xlim(low, high)
    axis.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
    axis.set_xticks([], minor=True)
    axis.set_title(card, loc="left")
    figure.supxlabel(
        "times as fast as the best ordinary tool; bar: accelerate, ring: graphed_step; "
        "right: a step with that tool → with ours"
        + "\nline: least to most of several runs, whose median is the bar"
        * bool((table["runs"] > 1).any()),
        fontsize=axis.xaxis.label.get_fontsize(),
    )
    return figure


def memory_figure(ladder: pd.DataFrame, card: str) -> Figure:
    """Draws the peak memory of a training step, a bar a setting, the most first; dashed, a third of BASE's.

    Args:
        ladder: rows of `study.bench.tables.by_setting`.
        card: the card of the measurement.
    """
    peaks = ladder["peak_gib"].dropna().sort_values(ascending=False, kind="stable")
    figure = new_figure(height=0.8 + 0.18 * len(peaks))
    axis = figure.subplots()
    bars = axis.barh(range(len(peaks)), peaks, 0.72, color=[colour_of(str(name)) for name in peaks.index])
    axis.bar_label(bars, [f"{peak:.1f}" for peak in peaks], padding=2, fontsize=7)
    if "BASE" in peaks.index:
        axis.axvline(float(peaks["BASE"]) / 3, color="black", linewidth=0.8, linestyle="--")
    name_rows(axis, [_label(str(name)) for name in peaks.index])
    axis.margins(x=0.1)
    axis.set_xlim(0, None)
    axis.set_xlabel("peak memory of a training step, GiB; dashed: a third of BASE's")
    axis.set_title(card, loc="left")
    return figure


def volumes_figure(table: pd.DataFrame, card: str, settings: Sequence[str] = ("BASE", "OPT1", "FAST")) -> Figure:
    """Draws seconds per volume, a row for each sampler, number of steps and batch, in it a dot for each setting.

    Args:
        table: of `study.bench.tables.volumes`.
        card: the card of the measurement.
        settings: the ones to draw.
    """
    shown = table[table["setting"].isin(settings)]
    shown = shown.assign(sampler=pd.Categorical(shown["sampler"], list(SAMPLER_NAMES)))  # in their order: DDPM's first
    shown = shown.sort_values(["batch", "sampler"], kind="stable").reset_index(drop=True)
    rows = shown.drop_duplicates(["sampler", "steps", "batch"])
    figure = new_figure(height=0.8 + 0.19 * len(rows), width=5.6)
    axis = figure.subplots()
    names: list[str] = []
    for row in shown.to_dict("records"):
        at_once = f", {row['batch']} at once" if row["batch"] != 1 else ""
        name = f"{SAMPLER_NAMES[row['sampler']]}, {row['steps']} steps{at_once}"
        names += [name] * (name not in names)
        seconds, place = float(row["seconds"]), names.index(name)
        _dot(axis, seconds, place, row["setting"])
        axis.annotate(exact(seconds), (seconds, place), (6, 0), textcoords="offset points", va="center", fontsize=7)
    name_rows(axis, names)
    _log(axis, float(shown["seconds"].min()) / 1.5, float(shown["seconds"].max()) * 3)
    axis.grid(axis="x", color="#EEEEEE")
    axis.set_xlabel("seconds per volume")
    axis.set_title(card, loc="left")
    present = [name for name in settings if name in set(shown["setting"])]
    keys = [Line2D([], [], color=colour_of(name), marker="o", linestyle="none", label=name) for name in present]
    axis.legend(handles=keys, loc="lower right")
    return figure
