"""Reads ncu's raw page of `worker.mark`: the launches between two separators are those of one version."""

from __future__ import annotations

from pathlib import Path

from medddpm.errors import BadInput
from medddpm.measure.profile import ncu_csv

SEPARATOR = "between_versions"  # in the name of the kernel that `worker.mark` launches before each version
SUMMED = {
    "duration_us": ("gpu__time_duration.sum",),
    "dram_mb": ("dram__bytes_read.sum", "dram__bytes_write.sum"),
    "l2_mb": ("lts__t_bytes.sum",),
    "instructions": ("smsp__inst_executed.sum",),
}
"""The metrics of each summed column of schema `COUNTERS` of `schemas_convnext`."""
WEIGHTED = {
    "sm_pct": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "tensor_pct": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
}
"""The metric of each column that is a mean weighted by time."""
UNITS = {"duration_us": 1e-3, "dram_mb": 1e-6, "l2_mb": 1e-6, "instructions": 1.0}  # from ncu's base units
METRICS = (*(metric for metrics in SUMMED.values() for metric in metrics), *WEIGHTED.values())


def counted(page: Path, versions: int) -> list[dict[str, float]]:
    """Sums the counters of each version, in the order in which the versions ran.

    Args:
        page: ncu's raw page, with base units.
        versions: the number of versions that ran.

    Returns:
        for each version launches, and the columns of `SUMMED` and `WEIGHTED`.

    Raises:
        BadInput: the page lacks a metric, or is of another number of versions.
    """
    opened = ncu_csv.open_page(page, "raw")
    if absent := [name for name in ("Kernel Name", *METRICS) if name not in opened.header]:
        raise BadInput(page, f"ncu counted no {absent[0]}", "try it by hand; another card may name it otherwise")
    launches_of_page = [row for batch in opened.batches(("Kernel Name", *METRICS)) for row in batch]
    numbers = {
        metric: ncu_csv.numbers([row[place] for row in launches_of_page], metric, page)
        for place, metric in enumerate(METRICS, 1)
    }
    starts = [place for place, row in enumerate(launches_of_page) if SEPARATOR in row[0]]
    if len(starts) != versions:
        raise BadInput(page, f"it holds {len(starts)} versions where {versions} ran", "measure again with --again")
    rows = []
    for start, end in zip(starts, [*starts[1:], len(launches_of_page)], strict=True):
        launches = slice(start + 1, end)
        time = numbers["gpu__time_duration.sum"][launches]
        sums = {
            column: float(UNITS[column] * sum(numbers[metric][launches].sum() for metric in metrics))
            for column, metrics in SUMMED.items()
        }
        weighted = {
            column: float((numbers[metric][launches] * time).sum() / max(time.sum(), 1e-9))
            for column, metric in WEIGHTED.items()
        }
        rows.append({"launches": end - start - 1, **{n: float(f"{v:.6g}") for n, v in (sums | weighted).items()}})
    return rows
