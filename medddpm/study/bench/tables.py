"""What is read off the bench's record: the ladder, what was asked against what was reached, where time remains."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from medddpm.study.bench.networks import NETWORKS
from medddpm.study.bench.settings import LADDER, ORDINARY, RUNGS
from medddpm.study.profile.families import family_named
from medddpm.study.records import schemas
from medddpm.study.records.tables import of_every_machine, read_table

NAME, CEILINGS_NAME = "bench.csv", "ceilings.csv"
OURS, BRATS, RIVAL = "med-ddpm", "med-ddpm-brats", "monai-diffusion"

_PRODUCTS = {  # of a convolution, by what cuDNN and this package call their kernels
    "convolution, weight gradient": r"wgrad|^_conv_weight|^_edge_correlate",
    "convolution, input gradient": r"dgrad|bprop|^_conv_adjoint",
    "convolution, forward": r"fprop|implicit_convolve|scudnn|^_conv$",
}


def recorded(root: Path) -> dict[str, pd.DataFrame]:
    """Every machine's record (schema `BENCH`) in the repository at `root`, by its folder's name.

    Raises:
        BadInput: there is none, or one does not fit its schema.
    """
    return of_every_machine(root, NAME, schemas.BENCH, notebook="16")


def ceilings(root: Path, gpu: str) -> dict[str, float]:
    """A machine's ceilings: "copy" in GB/s, "fp32", "tf32" and "bf16" in TFLOP/s.

    Raises:
        BadInput: its table is missing or broken.
    """
    table = read_table(root / "figures" / "records" / gpu / CEILINGS_NAME, schemas.CEILINGS)
    return dict(zip(table["ceiling"], table["value"], strict=True))


def rows_of(table: pd.DataFrame, network: str, measure: str) -> pd.DataFrame:
    """A network's rows of one measure at its own size and batch, by setting; of samples, the full chain's.

    Args:
        table: schema `BENCH`.
        network, measure: as there.
    """
    own = NETWORKS[network]
    rows = table[
        (table["network"] == network)
        & (table["measure"] == measure)
        & (table["batch"] == own.batch)
        & (table["size"] == own.size(own.side))
    ]
    if measure == "sample":
        rows = rows[rows["sampler"] == "ddpm"]
    return rows.set_index("setting")


def ladder(table: pd.DataFrame, network: str = OURS) -> pd.DataFrame:
    """Every setting that was measured, in the record's order.

    Returns:
        index setting; change, step_ms, step_p10_ms, step_p90_ms, step_gain (BASE's time by its own), the same of
        forward, sample_s, peak_gib, tflops (the step's), error_output and error_grad.
    """
    step, forward, sample = (rows_of(table, network, measure) for measure in ("step", "forward", "sample"))
    names = [name for name in RUNGS if name in step.index or name in forward.index]
    found: dict[str, Any] = {"change": pd.Series({name: RUNGS[name].change for name in names}, dtype=object)}
    for measure, rows in (("step", step), ("forward", forward)):
        base = rows["median_ms"].get("BASE", np.nan)
        found |= {f"{measure}_{short}": rows[short] for short in ("p10_ms", "p90_ms")}
        found |= {f"{measure}_ms": rows["median_ms"], f"{measure}_gain": base / rows["median_ms"]}
    found |= {"sample_s": sample["median_ms"] / 1e3, "peak_gib": step["peak_gib"], "tflops": step["tflops"]}
    found |= {"error_output": step["rel_error_output"], "error_grad": step["rel_error_grad"]}
    order = ["change"]
    order += [f"{m}_{short}" for m in ("step", "forward") for short in ("ms", "p10_ms", "p90_ms", "gain")]
    order += ["sample_s", "peak_gib", "tflops", "error_output", "error_grad"]
    return pd.DataFrame(found).reindex(index=pd.Index(names, name="setting"), columns=order)


def rungs_only(table: pd.DataFrame) -> pd.DataFrame:
    """Of `ladder`: the rows from BASE to FAST."""
    return table.loc[[rung.name for rung in LADDER if rung.name in table.index]]


def best_ordinary(table: pd.DataFrame, network: str, settings: tuple[str, ...] = ORDINARY) -> tuple[str, float]:
    """The quickest step of a network without this package: its setting, and its time, ms; ("", NaN) of none."""
    times = rows_of(table, network, "step")["median_ms"].reindex(list(settings)).dropna()
    return ("", np.nan) if times.empty else (str(times.idxmin()), float(times.min()))


def others(table: pd.DataFrame) -> pd.DataFrame:
    """Other people's networks: the best of ordinary tools against the fast path, a training step.

    Returns:
        index network; title, then the time of each setting of `ORDINARY`, best (a setting), best_ms, fast_ms (the step
        as one CUDA graph), ratio (best_ms divided by it), eager_ms and eager_ratio (the same as `accelerate` leaves it,
        called in a loop of one's own), error_output (FAST's distance), peak_best_gib, peak_fast_gib.
    """
    rows = {}
    for network in NETWORKS.values():
        step = rows_of(table, network.name, "step")
        if network.ours or step.empty:
            continue
        best, time = best_ordinary(table, network.name)
        fast, eager = (step["median_ms"].get(name, np.nan) for name in ("FAST", "FAST eager"))
        rows[network.name] = {
            "title": network.title,
            **step["median_ms"].reindex(list(ORDINARY)).to_dict(),
            "best": best,
            "best_ms": time,
            "fast_ms": fast,
            "ratio": time / fast,
            "eager_ms": eager,
            "eager_ratio": time / eager,
            "error_output": step["rel_error_output"].get("FAST", np.nan),
            "peak_best_gib": step["peak_gib"].get(best, np.nan),
            "peak_fast_gib": step["peak_gib"].get("FAST", np.nan),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("network")


def targets(table: pd.DataFrame) -> pd.DataFrame:
    """What the fast path had to reach, and what it did.

    Returns:
        what, asked (in words), reached (NaN where it is not in the record), verdict: reached, missed, not measured, or
        "–" where nothing was asked but the number.
    """
    step, forward = rows_of(table, OURS, "step"), rows_of(table, OURS, "forward")
    times, memory, error = step["median_ms"], step["peak_gib"], step["rel_error_output"]
    fast = times.get("FAST", np.nan)
    compiled = best_ordinary(table, OURS, ("compile", "compile channels-last"))[1]
    rival = best_ordinary(table, RIVAL)[1]
    brats = rows_of(table, BRATS, "step")
    wanted: list[tuple[str, str, float, float]] = [
        ("training step, BASE by FAST", "≥", 25, _ratio(times, "BASE", "FAST")),
        ("forward pass, BASE by FAST", "≥", 14, _ratio(forward["median_ms"], "BASE", "FAST")),
        ("sample of 250 steps, s", "≤", 4, rows_of(table, OURS, "sample")["median_ms"].get("FAST", np.nan) / 1e3),
        ("peak memory of a step, FAST by BASE", "≤", 0.5, _ratio(memory, "FAST", "BASE")),
        ("step, torch.compile and BF16 autocast by FAST", "≥", 2, compiled / fast),
        ("step, MONAI's at its best by Med-DDPM's FAST", "≥", 2, rival / fast),
        ("distance of the output, FAST", "<", 2e-2, error.get("FAST", np.nan)),
        ("distance of the output, FAST in TF32", "<", 2e-3, error.get("FAST tf32", np.nan)),
        ("training step, BASE by FAST in TF32", "≥", 8, _ratio(times, "BASE", "FAST tf32")),
    ]
    wanted += [(f"{row['title']}, best by FAST", "≥", 1.3, row["ratio"]) for _, row in others(table).iterrows()]
    wanted += [
        ("training step of the BraTS network, BASE by FAST", "", 0, _ratio(brats["median_ms"], "BASE", "FAST")),
        ("its peak memory, FAST by BASE", "", 0, _ratio(brats["peak_gib"], "FAST", "BASE")),
    ]
    rows = [
        {
            "what": what,
            "asked": f"{sign} {limit:g}" if sign else "–",
            "reached": value,
            "verdict": _verdict(sign, limit, value),
        }
        for what, sign, limit, value in wanted
    ]
    return pd.DataFrame(rows)


def _ratio(values: pd.Series[Any], above: str, below: str) -> float:
    return float(values.get(above, np.nan)) / float(values.get(below, np.nan))


def _verdict(sign: str, limit: float, value: float) -> str:
    if np.isnan(value):
        return "not measured"
    met = {"≥": value >= limit, "≤": value <= limit, "<": value < limit, "": None}[sign]
    return "–" if met is None else ("reached" if met else "missed")


def moved(kernels: pd.DataFrame, peak_gbps: float) -> dict[str, float]:
    """DRAM traffic of a whole step by the profile, GB: each launch's share of the peak over its time.

    Args:
        kernels: schema `KERNELS`, steps of one card; of several runs of a setting the first counts.
        peak_gbps: what `dram_pct` is a share of.

    Returns:
        by setting.
    """
    first = kernels[kernels["run"] == kernels.groupby("config", observed=True)["run"].transform("min")]
    gigabytes = first["count"] * first["duration_ns"] / 1e9 * first["dram_pct"].fillna(0) / 100 * peak_gbps
    return {
        str(setting): float(total) for setting, total in gigabytes.groupby(first["config"], observed=True).sum().items()
    }


def roofline(table: pd.DataFrame, profiled: Mapping[str, float] | None = None, network: str = OURS) -> pd.DataFrame:
    """Rows whose DRAM bytes are known: counted over the whole, or else by the profile of a step.

    Args:
        table: schema `BENCH`.
        profiled: of `moved`.
        network: whose.

    Returns:
        setting, measure, tflops, gbps, intensity (FLOPs of the network as it is written, by DRAM bytes).
    """
    parts = [rows_of(table, network, measure).reset_index() for measure in ("step", "forward")]
    rows = pd.concat(parts)
    by_profile = rows["setting"].map(dict(profiled or {})) / rows["median_ms"] * 1e3
    rows["gbps"] = rows["gbps"].fillna(by_profile.where(rows["measure"] == "step"))
    rows = rows.dropna(subset=["gbps"])
    rows = rows.assign(intensity=1e3 * rows["tflops"] / rows["gbps"])
    return rows[["setting", "measure", "tflops", "gbps", "intensity"]].reset_index(drop=True)


def flop(table: pd.DataFrame, measure: str, network: str = OURS) -> float:
    """TFLOP of a network's step or forward pass, out of the record."""
    row = rows_of(table, network, measure).iloc[0]
    return float(row["tflops"] * row["median_ms"] / 1e3)


def remaining(
    kernels: pd.DataFrame, tflop: Mapping[str, float], limits: Mapping[str, float], peak_gbps: float
) -> pd.DataFrame:
    """Where a step's time goes, against the least each part could take.

    The floor of a convolution's product is its FLOPs at the measured rate of BF16 products; all of the network's FLOPs
    are counted as the convolutions', which do all but a hundredth. That of any other family is the DRAM bytes it moves,
    as its kernels are written, at the measured rate of a copy.

    Args:
        kernels: schema `KERNELS`, of one step.
        tflop: of the "forward" and the "step".
        limits: of `ceilings`.
        peak_gbps: what the table's `dram_pct` is a share of.

    Returns:
        index part (a product of the convolution, or a family), by time, longest first; group, launches, ms, gb (moved
        through DRAM), floor_ms (NaN of helpers of the convolution).
    """
    used = kernels.assign(
        part=[_part(kernel, family) for kernel, family in zip(kernels["kernel"], kernels["family"], strict=True)],
        group=kernels["family"].map(_group),
        launches=kernels["count"],
        ms=kernels["count"] * kernels["duration_ns"] / 1e6,
    )
    used["gb"] = used["ms"] / 1e3 * used["dram_pct"].fillna(0) / 100 * peak_gbps
    parts = used.groupby("part").agg({"group": "first", "launches": "sum", "ms": "sum", "gb": "sum"})
    parts["floor_ms"] = 1e3 * parts["gb"] / limits["copy"]
    products = {
        "convolution, forward": tflop["forward"],
        "convolution, input gradient": tflop["step"] - 2 * tflop["forward"],
        "convolution, weight gradient": tflop["forward"],
        "convolution, other": np.nan,  # helpers: nothing that a convolution must do
    }
    for name, work in products.items():
        if name in parts.index:
            parts.loc[name, "floor_ms"] = 1e3 * work / limits["bf16"]
    return parts.sort_values("ms", ascending=False)


def _part(kernel: str, family: str) -> str:
    if _group(family) != "convolution":
        return family
    rest = family if family.startswith("fused") else "convolution, other"  # this package's say what they are
    return next((name for name, pattern in _PRODUCTS.items() if re.search(pattern, kernel)), rest)


def _group(family: str) -> str:
    return family_named(family).group


def volumes(table: pd.DataFrame, network: str = OURS) -> pd.DataFrame:
    """Whole samples: seconds a volume by setting, sampler, steps and batch, in the record's order."""
    rows = table[(table["network"] == network) & (table["measure"] == "sample")]
    seconds = rows["median_ms"] / 1e3 / rows["batch"]
    columns = ["setting", "sampler", "steps", "batch", "samples", "peak_gib"]
    return rows[columns].assign(seconds=seconds).reset_index(drop=True)
