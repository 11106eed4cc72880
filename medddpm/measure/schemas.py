"""The columns of the tables of profiles and comparisons, with their units and meanings, and how they are described."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Column:
    """The type, unit and range of a column.

    Args:
        dtype: "str", "int64" or "float64". A float is finite or, where `nullable`, missing.
        meaning: one phrase for a reader of the table.
        unit: the unit of every number in it; empty for names, counts and ratios.
        nullable: whether a value may be missing (an empty field).
        allowed: the only values a "str" column may hold; empty for any.
        later: whether some tables are older than the column, which is then read as empty.
        within: the least and the greatest number that it may hold.
    """

    dtype: str
    meaning: str
    unit: str = ""
    nullable: bool = False
    allowed: tuple[str, ...] = ()
    later: bool = False
    within: tuple[float, float] = (-math.inf, math.inf)

    @property
    def requirement(self) -> str:
        """A phrase for the values that a field may hold."""
        if self.allowed:
            return f"one of {', '.join(self.allowed)}"
        noun = {"str": "some text", "int64": "an integer", "float64": "a finite number"}[self.dtype]
        least, most = self.within
        return f"{noun} from {least:g} to {most:g}" if math.isfinite(least) else noun


@dataclass(frozen=True)
class Schema:
    """The columns of a table by name, in the order they are written."""

    columns: Mapping[str, Column]

    def described(self) -> dict[str, dict[str, str]]:
        """Returns `{name: {dtype, unit, meaning}}`, for the file beside a table."""
        return {n: {"dtype": c.dtype, "unit": c.unit, "meaning": c.meaning} for n, c in self.columns.items()}


COUNT, TIME_NS, RATIO, PLACE = (0.0, 1e18), (0.0, 1e15), (0.0, 1000.0), (0.0, 2.0**53)
"""Ranges of profiled values: sums over a launch; times, which a trace may round to 0; percentages and rates per cycle,
of which ncu measures some above 100 (records have an L2 hit rate of 290%); numbers of launches and streams."""
PHASES = ("load", "forward", "backward", "update")
"""The parts of a step, as the marks of a profiled program name them."""
VIEWS = ("window", "step")
"""The profiled parts of a setting: a stretch of launches, and a whole step."""
TRACE = Schema(
    {
        "index": Column("int64", "place in the step, from 0", within=PLACE),
        "kernel": Column("str", "name as CUPTI gives it; of a fill or copy, what kind it is"),
        "grid": Column("str", "blocks, (x, y, z); none of a fill or copy", nullable=True),
        "block": Column("str", "threads a block, (x, y, z); none of a fill or copy", nullable=True),
        "duration_ns": Column("float64", "time on the GPU, undisturbed by counters", unit="ns", within=TIME_NS),
        "phase": Column("str", "part of the step: load, forward, backward or update", nullable=True),
        "stream": Column("int64", "the stream it ran on", within=PLACE),
        "start_ns": Column(
            "float64", "its begin on the GPU, from the first begin on", "ns", nullable=True, later=True, within=TIME_NS
        ),
    }
)

CARD = Schema(
    {
        "property": Column("str", "as Table 1 of the paper names it"),
        "value": Column("str", "as the driver gives it, or as derived from what it gives"),
        "unit": Column("str", "of the value", nullable=True),
        "origin": Column("str", "driver, derived (and from what), or the paper's card of the same architecture"),
    }
)


def _counter(meaning: str, unit: str = "") -> Column:
    """Returns a column that may be empty: on a card without the counter, or for a launch that ncu did not see."""
    return Column("float64", meaning, unit, nullable=True, within=RATIO if unit == "%" or "/" in unit else COUNT)


_CLASSES = ("floating-point", "integer", "load/store", "movement", "predicate", "uniform-datapath", "control",
            "conversion", "miscellaneous")  # fmt: skip
KERNELS = Schema(
    {
        "config": Column("str", "the setting it ran under: BASE, OPT1, OPT2, OPT12 or FAST"),
        "view": Column("str", "a stretch of launches, or a whole step's distinct ones", allowed=VIEWS),
        "launch_index": Column("int64", "ncu's launch number; with a trace, the first place in the step", within=PLACE),
        "kernel": Column("str", "name"),
        "family": Column("str", "the kernel's family, as medddpm.measure.profile.families has it"),
        "grid": Column("str", "blocks, (x, y, z); none of a fill or copy", nullable=True),
        "block": Column("str", "threads a block, (x, y, z); none of a fill or copy", nullable=True),
        "count": Column("int64", "how often it is launched in the view", within=(1, 1e9)),
        "duration_ns": Column(
            "float64", "time of one launch: ncu's, or with a trace its mean there", "ns", within=TIME_NS
        ),
        "cycles_active": _counter("cycles in which an SM had a warp, summed over SMs, of one launch", "cycle"),
        "instructions": _counter("warp instructions executed by one launch", "inst"),
        "ipc": _counter("instructions divided by active cycles of an SM", "inst/cycle"),
        **{
            f"inst_{short}": _counter(f"{name} instructions of one launch", "inst")
            for short, name in zip(
                ("fp", "int", "ldst", "move", "pred", "uniform", "control", "conv", "misc"), _CLASSES, strict=True
            )
        },
        "tensor_pct": _counter("Tensor Core pipe, active share of active cycles", "%"),
        "fma_pct": _counter("FP32 (FMA) pipe, active share of active cycles", "%"),
        "alu_pct": _counter("integer and logic (ALU) pipe, active share of active cycles", "%"),
        "sm_throughput_pct": _counter("SM throughput, share of its peak", "%"),
        "l1_hit_pct": _counter("L1 hit rate by sectors", "%"),
        "l2_hit_pct": _counter("L2 hit rate by sectors", "%"),
        "dram_pct": _counter("DRAM bandwidth, share of its peak", "%"),
        "dram_read_bytes": Column(
            "float64", "bytes that one launch reads from DRAM", "byte", nullable=True, later=True, within=COUNT
        ),
        "dram_written_bytes": Column(
            "float64", "bytes that one launch writes to DRAM", "byte", nullable=True, later=True, within=COUNT
        ),
        "warps_per_cycle": _counter("warps resident on an active SM", "warp/cycle"),
        "stall_long_scoreboard": _counter("warp cycles waiting for global or local memory", "warp"),
        "stall_math_pipe": _counter("warp cycles waiting for a busy pipe", "warp"),
        "stall_branch": _counter("warp cycles waiting for a branch target", "warp"),
        "est_speedup_pct": _counter("share of the launch's time that ncu's rules call avoidable (Equation 2)", "%"),
        "priority": _counter("count times duration times estimated speedup (Equation 1)", "ns"),
    }
)
# Empty in rows that were measured before the record had these columns, and where a machine has no such thing.
ORIGIN = {
    "date": Column("str", "when it was measured", nullable=True),
    "gpu": Column("str", "the card, as its driver names it", nullable=True),
    "driver": Column("str", "version of the driver", nullable=True),
    "cuda": Column("str", "version of CUDA that PyTorch was built with", nullable=True),
    "cudnn": Column("str", "version of cuDNN", nullable=True),
    "torch": Column("str", "version of PyTorch", nullable=True),
    "triton": Column("str", "version of Triton", nullable=True),
    "commit": Column("str", "the commit that measured it", nullable=True),
    "host": Column("str", "names the machine since its last start: a hash of its boot id", nullable=True, later=True),
    "card": Column("str", "names the card among all of its kind: a hash of its UUID", nullable=True, later=True),
}
TIMES = {
    "median_ms": Column("float64", "time", unit="ms"),
    "p10_ms": Column("float64", "tenth percentile of the samples", unit="ms"),
    "p90_ms": Column("float64", "ninetieth percentile of the samples", unit="ms"),
    "samples": Column("int64", "how often it was timed"),
    "host_ms": Column(
        "float64", "the host's time to launch it all on an idle GPU, the median", "ms", nullable=True, later=True
    ),
    "peak_gib": Column(
        "float64",
        "the most that tensors held at once (torch.cuda.max_memory_allocated), a graph's capture included",
        unit="GiB",
        nullable=True,
    ),
}
ERRORS = {
    "rel_error_output": Column(
        "float64", "norm of the output's difference from BASE's, divided by the norm of BASE's", nullable=True
    ),
    "rel_error_grad": Column("float64", "the same of the gradient of all parameters together", nullable=True),
}
# Empty in rows that took less than half a second in all, too.
POWER = {
    "sm_mhz": Column("float64", "clock of the SMs while it was timed, the median (NVML)", unit="MHz", nullable=True),
    "watts": Column("float64", "power while it was timed, the mean (NVML)", unit="W", nullable=True),
}
COMPARED = Schema(
    {
        "file": Column("str", "the reader's file, and the function in it that builds the step"),
        "tool": Column("str", "as `medddpm compare --tools` names it"),
        "change": Column("str", "the tool in words"),
        "measure": Column(
            "str",
            "a training step (forward, loss, backward, Adam), or a forward pass without gradients",
            allowed=("step", "forward"),
        ),
        **{name: replace(column, nullable=column.dtype != "int64") for name, column in TIMES.items()},
        "rel_error_output": replace(
            ERRORS["rel_error_output"],
            meaning="norm of the difference of the network's outputs from float32's (TF32 off), divided by float32's",
        ),
        "rel_error_grad": ERRORS["rel_error_grad"],
        "autocast_rel_error_output": Column("float64", "the output's error under BF16 autocast alone", nullable=True),
        "autocast_rel_error_grad": Column("float64", "the gradient's error under BF16 autocast alone", nullable=True),
        **POWER,
        "why": Column("str", "why it was not measured; or why its errors are unknown", nullable=True),
        **ORIGIN,
    }
)
