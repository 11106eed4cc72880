"""Summarizes the bench's record in sentences for the notebooks; `study.numbers` takes single numbers from here."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping

import pandas as pd

from medddpm.measure.tools import LAST, ORDINARY, Tool
from study.bench.networks import NETWORKS
from study.bench.settings import BENCH_SETTINGS
from study.bench.tables import OURS, against, called_of, others, rows_of
from study.words import cudnn_release, listed

_WORK = {"step": "a training step", "forward": "a forward pass"}
_TOOLS = [name for name in ORDINARY if BENCH_SETTINGS[name].autocast]
_AUTOCAST = [name for name in _TOOLS if not BENCH_SETTINGS[name].compiled]
ERRORS = ["rel_error_output", "rel_error_grad"]
_OURS = ["accelerate", "graphed_step"]
_WAITS = 1.1  # times `graphed_step`'s time: if `accelerate` takes longer, the GPU waits for the host


def headline(table: pd.DataFrame, gpu: str, measure: str = "step") -> str:
    """Compares the fast path with the best ordinary tool, PyTorch out of the box and the paper's FP32; names gaps.

    Args:
        table: schema `BENCH`, of one machine.
        gpu: its name, as H200.
        measure: "step" or "forward".
    """
    times = rows_of(table, OURS, measure)["median_ms"]
    work, called = f"{_WORK[measure]} of {NETWORKS[OURS].title}", called_of(times)
    if called not in times.index:
        return f"On the {gpu} {work} was not measured on the fast path."
    known = times.reindex(list(ORDINARY))
    names = {"best ordinary": "the best ordinary tool", "PyTorch": "PyTorch out of the box", "BASE": "the paper's FP32"}
    opponents = against(table, OURS, measure)
    cudnn = rows_of(table, OURS, measure)["cudnn"].dropna().astype(str)
    ratios: list[str] = []
    for opponent, row in opponents.dropna(subset="ms").iterrows():
        its_tool = f"{tool(BENCH_SETTINGS[row['setting']])}: " if opponent == "best ordinary" else ""
        where = " measured there" if opponent == "best ordinary" and known.isna().any() else ""
        if opponent == "BASE" and "BASE" in cudnn:  # the paper's own cuDNN is older, and faster in FP32
            where = f" under cuDNN {cudnn_release(cudnn['BASE'])}"
        name = f"{names[str(opponent)]}{where} ({its_tool}{exact(row['ms'])} ms)"
        ratios.append(f"{exact(row['ratio'])} times as fast as {name}")
    how = "with `accelerate(model)` in an ordinary loop" if called == "accelerate" else "under FAST in one CUDA graph"
    volume = "one volume" if NETWORKS[OURS].flat else f"one {NETWORKS[OURS].side}³ volume"
    of = f"one micro-step of {volume}" if measure == "step" else volume  # the published step has two
    sentences = [f"On {gpu}s {work} ({of}) takes {exact(times[called])} ms {how}."]
    if ratios:
        sentences.append(f"That is {listed(ratios)}.")
    ways = {"graphed_step": "With `graphed_step` it takes", "FAST": "FAST, the package's own training, takes"}
    sentences += [f"{how} {exact(times[row])} ms." for row, how in ways.items() if row != called and row in times]
    missing = [names[str(opponent)] for opponent in opponents.index[opponents["ms"].isna()]]
    if known.isna().all():
        missing[0] = "any ordinary tool"
    elif known.isna().any():
        few = f"{known.isna().sum()} of the {len(known)} ordinary tools"
        with_pytorch = names["PyTorch"] in missing
        missing = [name for name in missing if name != names["PyTorch"]]
        missing.insert(0, f"{few}, {names['PyTorch']} among them" if with_pytorch else few)
    if missing:
        sentences.append(f"Not measured on the {gpu}: {', '.join(missing)}.")
    return " ".join(sentences)


def tool(setting: Tool, *, short: bool = False) -> str:
    """Describes an ordinary setting in a user's words.

    Args:
        setting: one of `ORDINARY`.
        short: whether it is for a table's cell: "`reduce-overhead`, channels-last", not "BF16 autocast with
            `torch.compile` in its mode `reduce-overhead`, in channels-last".
    """
    if setting.untouched:
        return "PyTorch" if short else "PyTorch out of the box"
    kind = "BF16 autocast" if setting.autocast else "TF32"
    compiled = "`torch.compile`" if setting.compiled else ""
    mode = f"`{setting.compiled}`" if setting.replays else ""
    search = "`cudnn.benchmark`" if setting.search and not setting.replays else ""
    if short:
        text = mode or compiled or kind.removeprefix("BF16 ")
    else:
        added = " and ".join(filter(None, (f"{compiled} in its mode {mode}" if mode else compiled, search)))
        text = f"{kind} with {added}" if added else kind
    return f"{text}, {'' if short else 'in '}channels-last" if setting.switches.channels_last else text


def network_gains(table: pd.DataFrame, gpu: str, repeats: pd.DataFrame | None = None) -> str:
    """Gives the gains of the networks of `fully_timed`, from the least to the most.

    Args:
        table: schema `BENCH`, of one machine.
        gpu: its name, as H200.
        repeats: as for `others`.
    """
    timed = fully_timed(table, repeats)
    low, middle, high = (timed[["ratio", "step_ratio"]].agg(how) for how in ("min", "median", "max"))
    alone, graphed = (f"{low[name]:.2f} to {high[name]:.2f} times" for name in ("ratio", "step_ratio"))
    return (
        f"For {len(timed)} networks on the {gpu} `accelerate` is {alone} as fast as the best ordinary tool, "
        f"{middle['ratio']:.2f} times in the median; `graphed_step` is {graphed}, {middle['step_ratio']:.2f} in the "
        f"median.{_repeated(timed)}"
    )


def _repeated(timed: pd.DataFrame) -> str:
    """Names the networks that were timed in several runs, with the least and the most of each ratio."""
    return "".join(
        f" {kind(network)} counts by the median of {row['runs']} runs, {row['ratio']:.2f} "
        f"({row['ratio_least']:.2f} to {row['ratio_most']:.2f}); with `graphed_step` {row['step_ratio']:.2f} "
        f"({row['step_ratio_least']:.2f} to {row['step_ratio_most']:.2f})."
        for network, row in timed[timed["runs"] > 1].iterrows()
    )


def network_limits(table: pd.DataFrame, repeats: pd.DataFrame | None = None) -> str:
    """Lists in Markdown what the networks' ratios leave out: losses, the search, memory, the distance from float32.

    `accelerate` and `graphed_step` launch the same kernels, so a tenth of a step between them is the host's time.

    Args:
        table: schema `BENCH`, of one machine. A tool counts as not timed for a network if another network has it;
            PyTorch without autocast is no tool.
        repeats: as for `others`.
    """
    timed = fully_timed(table, repeats)
    waiting = timed.index[timed["accelerate_ms"] > _WAITS * timed["step_ms"]]
    points, same = [], slower(timed).index.equals(waiting)
    if len(slower(timed)):
        why = ": in an ordinary loop the GPU waits for the host" if same else ""
        points.append(f"`accelerate` is no faster than the best tool for {slower_named(timed)}{why}.")
    if len(waiting) and not same:
        networks = listed([kind(network) for network in waiting])
        points.append(f"In an ordinary loop around {networks} the GPU waits for the host.")
    dearest, lacking = untimed(timed)
    if len(lacking):
        points.append(f"{dearest} was not timed for {listed([kind(network) for network in lacking])}.")
    peaks = memory(timed)
    alone, graphed = (f"{peaks[name].min():.2f} to {peaks[name].max():.2f} times" for name in peaks)
    points.append(f"A step's memory is {alone} the best tool's, with `graphed_step` {graphed}.")
    outputs, gradients = (f"by {errors_span(table, error)}%" for error in ERRORS)
    most = f"{errors_beside_best(table):.2f} times as much as the best tool's"
    points.append(f"Outputs differ from float32's {outputs}, gradients {gradients}: at most {most}.")
    return "\n".join(f"- {point}" for point in points)


def slower(timed: pd.DataFrame) -> pd.DataFrame:
    """Returns the networks that `accelerate` does not make faster than the best tool, in one run of several at least.

    Args:
        timed: as `fully_timed` returns it.
    """
    return timed[timed[["ratio", "ratio_least"]].min(axis="columns").round(3) < 1]


def slower_named(timed: pd.DataFrame) -> str:
    """Names the networks of `slower` with their ratios, as prose does; of several runs the least and the most."""
    names = []
    for network, row in slower(timed).iterrows():
        several = f"{row['ratio_least']:.2f} to {row['ratio_most']:.2f} in {row['runs']} runs"
        names.append(f"{kind(network)} ({several if row['runs'] > 1 else exact(row['ratio'])})")
    return listed(names)


def untimed(timed: pd.DataFrame) -> tuple[str, list[Hashable]]:
    """Returns the tool that searches longest, and the networks for which no layout of it was timed."""
    dearest = _kinds(timed[_TOOLS].notna()).iloc[:, -1]
    return _called(dearest.name), dearest.index[~dearest].tolist()


def memory(timed: pd.DataFrame) -> pd.DataFrame:
    """Returns the memory with `accelerate` and with `graphed_step`, in these columns, divided by the best tool's."""
    peaks = timed[["peak_gib", "peak_step_gib"]].div(timed["peak_best_gib"], axis="index")
    return peaks.set_axis(_OURS, axis="columns")


def errors_span(table: pd.DataFrame, error: str) -> str:
    """Returns the least and the largest distance of ours from float32 in percent: "0.6 to 4.1".

    Args:
        table: as for `network_limits`.
        error: one of `ERRORS`.
    """
    every = 100 * pd.concat([rows.loc[_OURS, error] for rows in _errors(table, fully_timed(table)).values()])
    return f"{every.min():.1f} to {every.max():.2g}"


def errors_beside_best(table: pd.DataFrame) -> float:
    """Returns the largest distance of ours from float32 divided by the best tool's for the same network."""
    timed = fully_timed(table)
    errors = _errors(table, timed)
    return _farther(errors, {network: errors[network].loc[name] for network, name in timed["best"].items()})


def network_gaps(table: pd.DataFrame) -> str:
    """Names the tools not timed for every network in every layout, and gives the distance from BF16 autocast.

    Args:
        table: as for `network_limits`.
    """
    timed = fully_timed(table)
    errors = _errors(table, timed)
    known = {network: rows.reindex(_AUTOCAST).dropna() for network, rows in errors.items()}
    nearest = {network: rows.min() for network, rows in known.items() if len(rows)}  # of the layouts
    sentences = _gaps(timed[_TOOLS].notna())
    if nearest:
        where = ", where measured" if len(nearest) < len(timed) else ""
        sentences.append(f"Errors are at most {_farther(errors, nearest):.2f} times those of BF16 autocast{where}.")
    return " ".join(sentences)


def _errors(table: pd.DataFrame, timed: pd.DataFrame) -> dict[Hashable, pd.DataFrame]:
    """Returns the distances from float32 under every setting, by network."""
    return {network: rows_of(table, str(network), "step")[ERRORS] for network in timed.index}


def _layouts(timed: pd.DataFrame) -> dict[str, list[str]]:
    """Returns the columns of each tool, by its name without the layout; a tool that no network has is left out."""
    layouts: dict[str, list[str]] = {}
    for name in timed.columns[timed.any()]:
        layouts.setdefault(name.removesuffix(LAST), []).append(name)
    return layouts


def _kinds(timed: pd.DataFrame) -> pd.DataFrame:
    """Returns whether a tool (column) was timed for a network (index) in any layout."""
    return pd.DataFrame({name: timed[columns].any(axis="columns") for name, columns in _layouts(timed).items()})


def _called(name: Hashable) -> str:
    return tool(BENCH_SETTINGS[str(name)], short=True)


def _gaps(timed: pd.DataFrame) -> list[str]:
    """Returns sentences on the tools that were not timed for every network in every layout.

    Args:
        timed: whether a tool (column) was timed for a network (index). A tool that no network has is left out.
    """
    layouts = _layouts(timed)
    every = pd.DataFrame({name: timed[columns].all(axis="columns") for name, columns in layouts.items()})
    sparse = timed.index[~_kinds(timed).all(axis="columns")]
    texts: list[str] = []
    for settings, group in timed.loc[sparse].groupby(timed.columns.tolist(), sort=False):
        has = dict(zip(timed.columns, settings, strict=True))
        tools = []
        for name, columns in layouts.items():
            there = [column for column in columns if has[column]]
            alone = "channels-last" if there and there[0].endswith(LAST) else "contiguous"
            tools += [f"{_called(name)}{f' ({alone})' if len(there) < len(columns) else ''}"] if there else []
        verb = "" if texts else " was timed" if len(tools) == 1 else " were timed"
        texts.append(f"only {listed(tools)}{verb} for {listed([kind(network) for network in group.index])}")
    texts = [f"{', '.join(texts)}."] if texts else []
    for name in layouts:
        both = every.index[every[name]]
        single = every.index.difference(both, sort=False).difference(sparse, sort=False)
        named = [[kind(network) for network in networks] for networks in (both, single)]
        if len(single) > len(both) > 0:  # the shorter list
            texts.append(f"{_called(name)} was timed in both layouts only for {listed(named[0])}.")
        elif len(single):
            texts.append(
                f"{_called(name)} was timed in only one layout{f' for {listed(named[1])}' if len(both) else ''}."
            )
    return [f"{text[0].upper()}{text[1:]}" for text in texts]


def _farther(errors: Mapping[Hashable, pd.DataFrame], theirs: Mapping[Hashable, pd.Series]) -> float:
    """Returns the largest ratio of our error to the other's in the same network."""
    return pd.Series([(errors[network].loc[_OURS] / row).max().max() for network, row in theirs.items()]).max()


def fully_timed(table: pd.DataFrame, repeats: pd.DataFrame | None = None) -> pd.DataFrame:
    """Returns the rows of `others` that have both ratios."""
    return others(table, repeats).dropna(subset=["ratio", "step_ratio"])


def kind(network: object) -> str:
    """Names a network as prose does: `UNet` with batch norm."""
    _, kind, variant = parts(network)
    return f"`{kind}`{f' with {variant}' if variant else ''}"


def parts(network: object) -> tuple[str, str, str]:
    """Returns a network's maker, kind and variant, which may be empty: its title is "MONAI UNet, batch norm"."""
    title, _, variant = NETWORKS[str(network)].title.partition(", ")
    maker, _, kind = title.partition(" ")
    return maker, kind, variant


def apart(hours: float) -> str:
    """Writes the time between two rows' measurements: "5 min", "7 h"; "–" if it is unknown."""
    if math.isnan(hours):
        return "–"
    return f"{60 * hours:.0f} min" if hours < 2 else f"{hours:.0f} h"


def cell(value: str | float) -> str:
    """Writes a table's cell: a name, a number as `exact` writes it, or "–" for a missing value."""
    return value if isinstance(value, str) else "–" if pd.isna(value) else exact(value)


def exact(value: float) -> str:
    """Writes a number with at least three digits, zeros included, without an exponent: 2.00 is more exact than 2."""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}".rstrip(".")
