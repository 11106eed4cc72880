"""Says what bounds a step: Tensor Cores, memory, other units, too few blocks, latency, communication, host or loader.

Each launch's time goes to the first rule of `RULES` that fits the launch; time in which the GPU idles goes to the
loader, as far as the host waited for that, and else to the host. What has the largest share of the step bounds it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from medddpm.measure.report.folder import Profile

TENSOR, MEMORY, UNITS, LATENCY = "Tensor Cores", "memory bandwidth", "other units of the SMs", "latency"
FEW = "too few blocks"
TALK, HOST, LOADER, UNKNOWN = "communication between GPUs", "the host", "the loader", "cannot be told"
BUSY = 60.0
"""Percent of its peak from which a unit bounds a launch: the number of Nsight Compute's rule SOLBottleneck, which says
that below it latency is the usual reason. That rule looks at the SMs and at all of memory; here memory is DRAM."""
FEW_BLOCKS = 100  # fewer than an A100 (108) or an H100 (132) has SMs, so that some of them idle; a choice
SMALL_NS = 5_000.0  # launches shorter than that are over before the host has launched the next one; a choice
FEW_WARPS = 16.0  # of the 64 that an SM of an A100 or H100 holds: a quarter; a choice
LEAST, NAMED = 0.4, 0.1  # share that bounds a step by itself, and share that is named beside it; choices
NOT_COUNTED = (
    "Counters are missing: their run was left out or interrupted, and the same command goes on with it; or the driver "
    "keeps them for administrators, as on most clouds. Whoever administers the machine opens them with the driver's "
    "option NVreg_RestrictProfilingToAdminUsers=0 and a restart, or runs the profile as root."
)


@dataclass(frozen=True)
class Rule:
    """A rule of the table.

    Args:
        bound: what it calls the bound.
        when: the condition, in words.
        source: whose threshold it is.
        advice: what helps.
    """

    bound: str
    when: str
    source: str
    advice: str


_NCU, _CHOICE = "the number of Nsight Compute's rule SOLBottleneck", "a choice"
RULES = (
    Rule(TALK, "a launch of NCCL's", "its name", "overlap it with the backward pass; larger buckets; fewer bytes"),
    Rule(
        TENSOR, f"Tensor Core pipe at {BUSY:g}% or more", f"{_NCU}; for this pipe a choice",
        "fewer operations, or a lower precision",
    ),
    Rule(
        MEMORY, f"DRAM bandwidth at {BUSY:g}% or more", f"{_NCU}, which also counts L1 and L2",
        "fuse what reads the same tensors (torch.compile, accelerate); BF16 halves the bytes",
    ),
    Rule(
        UNITS, f"SM throughput at {BUSY:g}% or more", _NCU,
        "TF32 or BF16, if these are FP32 products: CUDA cores then leave them to the Tensor Cores",
    ),
    Rule(
        FEW, f"fewer than {FEW_BLOCKS} blocks, {SMALL_NS / 1000:g} µs or longer, with counters", _CHOICE,
        "other algorithms (cudnn.benchmark); larger batches; a reduction in more parts; SMs idle meanwhile",
    ),
    Rule(
        LATENCY, "none of these, with counters", "what is left",
        "larger batches or tiles; other algorithms (cudnn.benchmark); fused or graphed small launches",
    ),
    Rule(
        LATENCY, f"no counters, and the launch is shorter than {SMALL_NS / 1000:g} µs", _CHOICE,
        "fuse small launches; CUDA graphs",
    ),
    Rule(UNKNOWN, "no counters, and longer", "", NOT_COUNTED),
    Rule(
        LOADER, "the GPU idles while the host waits for the loader", "the step's time and the wait, without a profiler",
        "more workers, cached or prepared volumes, pinned memory",
    ),
    Rule(
        HOST, "the GPU idles otherwise", "the step's time without a profiler, less the time of its launches",
        "CUDA graphs (graphed_step, reduce-overhead); fewer .item() and prints; fewer, larger launches",
    ),
)  # fmt: skip
"""The rules in order: the first that fits a launch has its time; the last two share the time that is left."""
ORDER = tuple(dict.fromkeys(rule.bound for rule in RULES))


@dataclass(frozen=True)
class Bounds:
    """A step's time by what bounds it.

    Args:
        shares: of the step, by bound; they sum to 1. Without `wall_ms` they are shares of the GPU's time.
        wall_ms: time of a step; None if nothing tells it.
        busy_ms: time in which the GPU was busy.
        slowed: whether `wall_ms` is a profiled step's, which the profiler slows.
        small, few_warps: parts of the latency's time in short launches, and in others with few warps.
    """

    shares: Mapping[str, float]
    wall_ms: float | None
    busy_ms: float
    slowed: bool
    small: float
    few_warps: float

    @property
    def bound(self) -> str:
        """The bound with the largest share."""
        return max(self.shares, key=lambda name: self.shares[name])


def of_launches(kernels: pd.DataFrame) -> pd.Series[str]:
    """Returns what bounds each row of a table `KERNELS`."""
    counted = kernels["cycles_active"].notna()
    blocks = kernels["grid"].astype(str).str.extract(r"(\d+), (\d+), (\d+)").astype(float).prod(axis=1, skipna=False)
    conditions = [
        (kernels["family"] == "nccl", TALK),
        (kernels["tensor_pct"] >= BUSY, TENSOR),
        (kernels["dram_pct"] >= BUSY, MEMORY),
        (kernels["sm_throughput_pct"] >= BUSY, UNITS),
        (counted & (blocks < FEW_BLOCKS) & (kernels["duration_ns"] >= SMALL_NS), FEW),
        (counted | (kernels["duration_ns"] < SMALL_NS), LATENCY),
    ]
    fitting, bounds = zip(*conditions, strict=True)
    return pd.Series(np.select(fitting, bounds, UNKNOWN), kernels.index, dtype=object)


def of_step(profile: Profile) -> Bounds:
    """Divides a step's time by what bounds it."""
    kernels = profile.by_launch
    time, bound = kernels["count"] * kernels["duration_ns"], of_launches(kernels)
    launched = (time.groupby(bound).sum() / time.sum()).to_dict()
    busy, span = _busy(profile.launches)
    program = profile.program
    wall = statistics.median(program.step_ms) if program.step_ms else span
    idle = max(0.0, 1.0 - busy / wall) if wall else 0.0
    waited = statistics.median(program.loading_ms) / wall if program.loading_ms and wall else 0.0
    shares = {name: (1.0 - idle) * share for name, share in launched.items()}
    shares[LOADER] = min(idle, waited)
    shares[HOST] = idle - shares[LOADER]
    late = bound == LATENCY
    total = max(float(time[late].sum()), 1e-300)
    small = late & (kernels["duration_ns"] < SMALL_NS)
    few = late & ~small & (kernels["warps_per_cycle"] < FEW_WARPS)
    return Bounds(
        shares={name: float(shares.get(name, 0.0)) for name in ORDER},
        wall_ms=wall or None,
        busy_ms=busy,
        slowed=not program.step_ms and wall is not None,
        small=float(time[small].sum() / total),
        few_warps=float(time[few].sum() / total),
    )


def _busy(launches: pd.DataFrame) -> tuple[float, float | None]:
    """Returns the time in which some launch ran, and from the first one's begin to the last one's end, ms.

    Without begins: the sum of the launches' times, and None.
    """
    begins = launches.get("start_ns")
    if begins is None or begins.isna().any():
        return float(launches["duration_ns"].sum()) / 1e6, None
    order = np.argsort(begins.to_numpy(), kind="stable")
    first = begins.to_numpy()[order]
    last = np.maximum.accumulate(first + launches["duration_ns"].to_numpy()[order])
    gaps = np.clip(first[1:] - last[:-1], 0.0, None).sum()
    span = float(last[-1] - first[0])
    return (span - float(gaps)) / 1e6, span / 1e6


def sentences(bounds: Bounds, known: float) -> list[str]:
    """Says in words what bounds a step, how sure that is, and what is missing.

    Args:
        bounds: of `of_step`.
        known: the share of the GPU's time in launches with counters.
    """
    ranked = sorted(((share, name) for name, share in bounds.shares.items()), reverse=True)
    (most, first), rest = ranked[0], [f"{name} {share:.0%}" for share, name in ranked[1:] if share >= NAMED]
    of_what = "step's time" if bounds.wall_ms else "GPU's time in this step"
    if first == UNKNOWN:
        said = f"What bounds this step cannot be told: launches without counters have {most:.0%} of the {of_what}."
    elif most < LEAST:
        said = f"No single thing bounds this step: the largest share of the {of_what}, {most:.0%}, is {first}."
    else:
        verb = "bound" if first in (TENSOR, UNITS, FEW) else "bounds"
        said = f"{first[0].upper()}{first[1:]} {verb} this step: {most:.0%} of the {of_what}."
    told = [said]
    if rest:
        told.append(f"Then: {', '.join(rest)}.")
    if bounds.shares[LATENCY] >= NAMED:
        told.append(
            f"Of the latency's time {bounds.small:.0%} is in launches shorter than {SMALL_NS / 1000:g} µs and "
            f"{bounds.few_warps:.0%} in others with fewer than {FEW_WARPS:g} warps on an SM."
        )
    if bounds.wall_ms is None:
        told.append(
            "The time of a step without a profiler was not recorded, nor when each launch began: whether the GPU waits "
            "for the host or the loader cannot be told."
        )
    elif bounds.slowed:
        told.append("The step's time is a profiled one's, which the profiler slows: the host's share is at most this.")
    if known < 1 - LEAST:
        told.append(NOT_COUNTED)
    return told
