"""Reads the bench's record: the ladder, other people's networks, the parts of a step."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from medddpm.measure.machine import gpu_folder_name
from medddpm.measure.profile.families import family_named
from medddpm.measure.tables import of_every_machine, read_meta, read_table
from medddpm.measure.tools import CAPTURED, INFERENCE, LAST, ORDINARY, TOOLS
from study.bench.networks import NETWORKS
from study.bench.results import CEILINGS_TABLE, report_key
from study.bench.settings import BENCH_SETTINGS, LADDER
from study.records import schemas

NAME = "bench.csv"
HOST_BOUND = "monai-unet-batch"  # its step waits for the host: `repeats` has its other runs
ELSEWHERE = {"monai-mednext": "H200"}
"""Networks whose tools fell short on the H100 (their channels-last rows are contiguous), and the card in its place."""
COMPARED_ON = "H100 (`MedNeXt`: an H200)"  # the cards of `compared`, as a sentence names them
OURS = "med-ddpm"
_SPREADS = ("ratio_least", "ratio_most", "step_ratio_least", "step_ratio_most")

_PRODUCTS = {  # the products of a convolution, by the names of cuDNN's and this package's kernels
    "convolution, weight gradient": r"wgrad|^_conv_weight|^_edge_correlate",
    "convolution, input gradient": r"dgrad|bprop|^_conv_adjoint",
    "convolution, forward": r"fprop|implicit_convolve|scudnn|^_conv$",
}


def recorded(root: Path) -> dict[str, pd.DataFrame]:
    """Reads every machine's record (schema `BENCH`) in the repository at `root`, by its folder's name.

    Raises:
        BadInput: there is none, or one does not fit its schema.
    """
    return of_every_machine(root, NAME, schemas.BENCH, notebook="16")


def compared(records: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Returns the H100's rows of `recorded`'s tables, but another card's for the networks of `ELSEWHERE`."""
    h100 = records["H100"]
    apart = [records[card][records[card]["network"] == network] for network, card in ELSEWHERE.items()]
    return pd.concat([h100[~h100["network"].isin(ELSEWHERE)], *apart], ignore_index=True)


def ceilings(root: Path, gpu: str) -> dict[str, float]:
    """Reads a machine's ceilings: "copy" in GB/s, "fp32", "tf32" and "bf16" in TFLOP/s.

    Raises:
        BadInput: its table is missing or broken.
    """
    table = read_table(root / "figures" / "records" / gpu / CEILINGS_TABLE, schemas.CEILINGS)
    return dict(zip(table["ceiling"], table["value"], strict=True))


def rows_of(table: pd.DataFrame, network: str, measure: str) -> pd.DataFrame:
    """Returns a network's rows of one measure at its own size and batch, by setting; for samples, the full chain's.

    Args:
        table: schema `BENCH`.
        network, measure: as in that table.
    """
    entry = NETWORKS[network]
    rows = table[
        (table["network"] == network)
        & (table["measure"] == measure)
        & (table["batch"] == entry.batch)
        & (table["size"] == entry.size(entry.side))
    ]
    if measure == "sample":
        rows = rows[rows["sampler"] == "ddpm"]
    return rows.set_index("setting")


def by_setting(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the published network under every setting that was measured, in the record's order.

    Returns:
        index setting; change, step_ms, step_p10_ms, step_p90_ms, step_gain (BASE's time divided by its own), the same
        for forward, sample_s, peak_gib, tflops (the step's), error_output and error_grad.
    """
    step, forward, sample = (rows_of(table, OURS, measure) for measure in ("step", "forward", "sample"))
    names = [name for name in BENCH_SETTINGS if name in step.index or name in forward.index]
    columns: dict[str, Any] = {"change": pd.Series({name: BENCH_SETTINGS[name].change for name in names}, dtype=object)}
    for measure, rows in (("step", step), ("forward", forward)):
        base = rows["median_ms"].get("BASE", np.nan)
        columns |= {f"{measure}_{short}": rows[short] for short in ("p10_ms", "p90_ms")}
        columns |= {f"{measure}_ms": rows["median_ms"], f"{measure}_gain": base / rows["median_ms"]}
    columns |= {"sample_s": sample["median_ms"] / 1e3, "peak_gib": step["peak_gib"], "tflops": step["tflops"]}
    columns |= {"error_output": step["rel_error_output"], "error_grad": step["rel_error_grad"]}
    order = ["change"]
    order += [f"{m}_{short}" for m in ("step", "forward") for short in ("ms", "p10_ms", "p90_ms", "gain")]
    order += ["sample_s", "peak_gib", "tflops", "error_output", "error_grad"]
    return pd.DataFrame(columns).reindex(index=pd.Index(names, name="setting"), columns=order)


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """Makes rows of `by_setting` readable: the label in figures, times, gains, errors; "–" for a missing value."""
    called = {
        "step_ms": ("step, ms", 1), "step_gain": ("step, × BASE", 2), "forward_ms": ("forward, ms", 1),
        "forward_gain": ("forward, × BASE", 2), "peak_gib": ("GiB", 1),
        "tflops": ("TFLOP/s", 1), "error_output": ("error, output", 4), "error_grad": ("error, grad", 4),
    }  # fmt: skip
    written = {
        title: ["–" if pd.isna(value) else f"{value:.{digits}f}" for value in table[name]]
        for name, (title, digits) in called.items()
    }
    return pd.DataFrame({"what it is": table["change"]} | written, index=table.index)


def ladder(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of `by_setting` from BASE to FAST, one change a row."""
    return table.loc[[setting.name for setting in LADDER if setting.name in table.index]]


def called_of(rows: pd.DataFrame | pd.Series) -> str:
    """Returns the setting that opponents are compared with: `accelerate` in an ordinary loop, or else FAST.

    A reader who calls `accelerate` has the first; forward passes and older records lack it.

    Args:
        rows: by setting.
    """
    return "accelerate" if "accelerate" in rows.index else "FAST"


def against(table: pd.DataFrame, network: str = OURS, measure: str = "step") -> pd.DataFrame:
    """Compares a network with itself under the best ordinary tool, PyTorch out of the box, and the paper's FP32.

    Args:
        table: schema `BENCH`, of one machine.
        network, measure: as in that table.

    Returns:
        index opponent, in that order: "best ordinary" (the fastest of `ORDINARY`, and in a forward pass of `INFERENCE`
        too), "PyTorch" and "BASE"; setting, ms
        (its time) and ratio (divided by the time under the setting of `called_of`); NaN if it was not measured.
    """
    times = rows_of(table, network, measure)["median_ms"]
    halved = [tool.name for tool in INFERENCE] if measure == "forward" else []
    ordinary = times.reindex([*ORDINARY, *halved]).dropna()
    settings = pd.Series(
        {"best ordinary": ordinary.idxmin() if len(ordinary) else None, "PyTorch": "PyTorch", "BASE": "BASE"},
        name="setting",
    ).rename_axis("opponent")
    opponents = pd.DataFrame({"setting": settings, "ms": settings.map(times).astype("float64")})
    return opponents.assign(ratio=opponents["ms"] / times.get(called_of(times), np.nan))


def others(table: pd.DataFrame, repeats: pd.DataFrame | None = None) -> pd.DataFrame:
    """Compares a training step of other people's networks with the best ordinary tool and on the fast path.

    Args:
        table: schema `BENCH`, of one machine.
        repeats: of `study.bench.repeats.searched_runs`. Of `HOST_BOUND` the times and ratios are these runs' medians,
            and the best tool that which was the best most often; without them its row is one run, as the others' are.

    Returns:
        index network; title (with the card, where most networks have another), then the time of each setting of
        `ORDINARY`, best (a setting), best_ms, accelerate_ms (in an ordinary loop), ratio (best_ms divided by it),
        step_ms (with `graphed_step`), step_ratio (the time of the best of `TOOLS` divided by it), apart_h (hours
        from accelerate's measurement to the best's), error_output and error_grad (accelerate's distance from BASE),
        best_error_grad, peak_best_gib, peak_gib (accelerate's), peak_step_gib (with `graphed_step`); best_p10_ms,
        best_p90_ms, p10_ms, p90_ms (accelerate's), step_p10_ms and step_p90_ms, the percentiles of the table's run;
        runs (their number), ratio_least, ratio_most, step_ratio_least and step_ratio_most (of the repeats, else NaN).
    """
    rows = {}
    card = _card(table)
    for network in NETWORKS.values():
        step = rows_of(table, network.name, "step")
        if network.ours or step.empty:
            continue
        times = compare_step(step) | {"runs": 1} | dict.fromkeys(_SPREADS, np.nan)
        if repeats is not None and network.name == HOST_BOUND:
            times |= _medians(repeats)
        here = _card(step) or card
        rows[network.name] = {
            "title": network.title if here == card else f"{network.title} ({here})",
            **{name: step["median_ms"].get(name, np.nan) for name in ORDINARY},
            **times,
            "error_output": step["rel_error_output"].get("accelerate", np.nan),
            "error_grad": step["rel_error_grad"].get("accelerate", np.nan),
            "best_error_grad": step["rel_error_grad"].get(times["best"], np.nan),
            "peak_best_gib": step["peak_gib"].get(times["best"], np.nan),
            "peak_gib": step["peak_gib"].get("accelerate", np.nan),
            "peak_step_gib": step["peak_gib"].get("graphed_step", np.nan),
            **{
                f"{ours}{end}_ms": step[f"{end}_ms"].get(setting, np.nan)
                for ours, setting in (("best_", times["best"]), ("", "accelerate"), ("step_", "graphed_step"))
                for end in ("p10", "p90")
            },
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("network")


def _card(rows: pd.DataFrame) -> str:
    """Returns the records folder of the card that most rows name; "" if none names one."""
    cards = rows["gpu"].dropna().mode()
    return gpu_folder_name(str(cards.iloc[0])) if len(cards) else ""


def compare_step(step: pd.DataFrame) -> dict[str, Any]:
    """Compares a network's step on the fast path with the best tool, from its rows by setting; NaN if not measured."""
    took = step["median_ms"]
    ordinary = took.reindex(list(ORDINARY))
    best = str(ordinary.idxmin()) if ordinary.notna().any() else ""
    called, graphed = (took.get(name, np.nan) for name in ("accelerate", "graphed_step"))
    when = pd.to_datetime(step["date"]).reindex(["accelerate", best])
    return {
        "best": best,
        "best_ms": ordinary.min(),
        "accelerate_ms": called,
        "ratio": ordinary.min() / called,
        "step_ms": graphed,
        "step_ratio": took.reindex(list(TOOLS)).min() / graphed,
        "apart_h": when.diff().dt.total_seconds().abs().iloc[-1] / 3600,
    }


def _medians(runs: pd.DataFrame) -> dict[str, Any]:
    """Returns a row of `compare_step` from several runs: the medians, and the least and the most of both ratios."""
    numbers = ["best_ms", "accelerate_ms", "ratio", "step_ms", "step_ratio", "apart_h"]
    spreads = [runs[ratio].agg(how) for ratio in ("ratio", "step_ratio") for how in ("min", "max")]
    return {
        "best": runs["best"].mode().iloc[0],
        **{name: runs[name].median() for name in numbers},
        "runs": len(runs),
        **dict(zip(_SPREADS, spreads, strict=True)),
    }


def by_hand(table: pd.DataFrame) -> pd.Series[float]:
    """Divides the time of the best compiled step that a user captures by hand by `graphed_step`'s, by network.

    Args:
        table: schema `BENCH`, of one machine. A network counts if such a step was timed in the layout in which
            `reduce-overhead` is faster.
    """
    ratios = {}
    for network in table["network"].unique():
        took = rows_of(table, network, "step")["median_ms"]
        replay = took.reindex(["reduce-overhead", f"reduce-overhead{LAST}"])
        if replay.notna().any():
            last = str(replay.idxmin()).endswith(LAST)
            captured = took.reindex([setting.name for setting in CAPTURED if setting.name.endswith(LAST) == last])
            ratios[network] = captured.min() / took.get("graphed_step", np.nan)
    return pd.Series(ratios).dropna()


def ours(table: pd.DataFrame) -> pd.DataFrame:
    """Compares a training step of this book's own networks under BASE and under FAST.

    Returns:
        index network; title, base_ms, fast_ms, gain (BASE/FAST), peak_base_gib, peak_fast_gib and memory (FAST/BASE).
    """
    rows = {}
    for network in NETWORKS.values():
        step = rows_of(table, network.name, "step").reindex(["BASE", "FAST"])
        if not network.ours or step["median_ms"].isna().all():
            continue
        base, fast = step["median_ms"]
        peak_base, peak_fast = step["peak_gib"]
        rows[network.name] = {
            "title": network.title,
            "base_ms": base,
            "fast_ms": fast,
            "gain": base / fast,
            "peak_base_gib": peak_base,
            "peak_fast_gib": peak_fast,
            "memory": peak_fast / peak_base,
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("network")


def readable_ours(table: pd.DataFrame) -> pd.DataFrame:
    """Makes a table of `ours` readable."""
    called = {
        "base_ms": "BASE, ms", "fast_ms": "FAST, ms", "gain": "gain", "peak_base_gib": "BASE, GiB",
        "peak_fast_gib": "FAST, GiB", "memory": "GiB, FAST/BASE",
    }  # fmt: skip
    return table[list(called)].rename(columns=called).round(3)


def reports(root: Path, gpu: str, setting: str = "FAST") -> dict[str, str]:
    """Reads the reports of `accelerate` under a setting, by network.

    Raises:
        BadInput: the record's description is missing or unreadable.
    """
    recorded = read_meta(root / "figures" / "records" / gpu / NAME)["accelerated"]
    keys = {network: report_key(network, setting) for network in NETWORKS}
    return {network: recorded[key] for network, key in keys.items() if key in recorded}


def part_of(kernel: str, family: str) -> str:
    """Returns the part of a step that a kernel belongs to: a product of the convolutions, or else its family."""
    if family_named(family).group != "convolution":
        return family
    default = family if family.startswith("fused") else "convolution, other"  # this package's say what they are
    return next((name for name, pattern in _PRODUCTS.items() if re.search(pattern, kernel)), default)
