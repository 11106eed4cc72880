"""The metrics that ncu measures for the study, by ncu's names (its Profiling Guide, "Metrics Reference")."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """A column of the schema `KERNELS` that ncu measures.

    Args:
        names: ncu's names for it, the preferred one first; other cards have the others.
        unit: the unit of the column.
        optional: whether a card or a release may lack it; the column is then empty.
        beside: a metric that is collected with it for readers of ncu's own pages, and not parsed.
    """

    names: tuple[str, ...]
    unit: str
    optional: bool = False
    beside: str = ""


METRICS = {
    "duration_ns": Metric(("gpu__time_duration.sum",), "ns"),
    "cycles_active": Metric(("sm__cycles_active.sum",), "cycle", beside="sm__cycles_elapsed.max"),
    "instructions": Metric(
        ("smsp__inst_executed.sum", "sm__inst_executed.sum"), "inst", beside="sm__inst_executed.avg.per_cycle_active"
    ),
    "sm_throughput_pct": Metric(("sm__throughput.avg.pct_of_peak_sustained_elapsed",), "%"),
    "l1_hit_pct": Metric(("l1tex__t_sector_hit_rate.pct",), "%"),
    "l2_hit_pct": Metric(("lts__t_sector_hit_rate.pct",), "%"),
    "dram_pct": Metric(
        (
            "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
            "dram__throughput.avg.pct_of_peak_sustained_elapsed",
        ),
        "%",
    ),
    "dram_read_bytes": Metric(("dram__bytes_read.sum",), "byte", optional=True),
    "dram_written_bytes": Metric(("dram__bytes_write.sum",), "byte", optional=True),
    "warps_per_cycle": Metric(("sm__warps_active.avg.per_cycle_active",), "warp"),
    # The V100 has none of the three (the paper, Section 3.2).
    "stall_long_scoreboard": Metric(("smsp__warps_issue_stalled_long_scoreboard.sum",), "warp", optional=True),
    "stall_math_pipe": Metric(("smsp__warps_issue_stalled_math_pipe_throttle.sum",), "warp", optional=True),
    "stall_branch": Metric(("smsp__warps_issue_stalled_branch_resolving.sum",), "warp", optional=True),
    "tensor_pct": Metric(
        (
            "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
            "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",  # Turing and GA10x
            "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",  # Volta
        ),
        "%",
    ),
    "fma_pct": Metric(("sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active",), "%"),
    "alu_pct": Metric(("sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_active",), "%"),
}
"""The columns by name."""

INSTRUCTIONS = ("sass__inst_executed_per_opcode_category", "sass__inst_executed_per_opcode")
"""The metric whose instances are the instruction classes, and what stands for it before ncu 2025.2."""

PARSED = (*(metric.names[0] for metric in METRICS.values()), INSTRUCTIONS[0])
"""The names that `medddpm parse` wants."""

COLLECTED = (*(n for m in METRICS.values() for n in (m.names[0], m.beside) if n), INSTRUCTIONS[0])
"""The names that `medddpm profile` has ncu measure."""
