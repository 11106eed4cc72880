"""Reads chapter 18's records: every card's tables, and single numbers of the newest card."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from medddpm.measure.tables import of_any_machine
from study.convnext.results import TABLES
from study.convnext.versions import block_products

CASE = ["operator", "batch", "size", "stride", "version"]
IMAGE_BYTES = 4 * 3 * 32 * 32
OUTPUT_BYTES = 4 * 64 * 32 * 32  # of its convolution
NORMS = {"block": "a thread block a row", "warp": "a warp a row"}  # longer names for the record's words
IDLE = 0.1  # % of cycles: a version whose Tensor Cores do less computes without them


def recorded(root: Path, name: str) -> dict[str, pd.DataFrame]:
    """Reads every machine's table of `results.TABLES`, by its folder's name; empty if none has been measured."""
    return of_any_machine(root, f"{name}.csv", TABLES[name])


def operators(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the seconds of each operator, a column a variant, in the order of the report's Table I, and the total."""
    wide = table.pivot(index="operator", columns="variant", values="seconds")
    return wide.reindex(index=table["operator"].unique(), columns=table["variant"].unique())


def times(table: pd.DataFrame, operator: str, batch: int, size: str = "32x32x64", stride: int = 1) -> pd.DataFrame:
    """Returns the versions of one case.

    Args:
        table: schema `KERNELS` of `schemas_convnext`.
        operator, batch, size, stride: as in that table.

    Returns:
        index version, in the record's order, a layer norm's by `NORMS`; graph_us, launched_us and processor_us, NaN if
        not measured, tflops (of the graph's time) and error.
    """
    rows = _where(table, operator=operator, batch=batch, size=size, stride=stride)
    wide = rows.pivot(index="version", columns="how", values="median_us").add_suffix("_us")
    wide = wide.reindex(index=rows["version"].unique(), columns=["graph_us", "launched_us", "processor_us"])
    by_version = rows.drop_duplicates("version").set_index("version")
    wide.columns.name = None
    wide = wide.assign(tflops=1e3 * by_version["gflop"] / wide["graph_us"], error=by_version["error"])
    return wide.rename(index=NORMS) if operator == "layer_norm" else wide


def roofline(counters: pd.DataFrame, kernels: pd.DataFrame, limits: Mapping[str, float]) -> pd.DataFrame:
    """Places each version under ncu on the roofline, a layer norm's named by `NORMS`.

    Args:
        counters: schema `COUNTERS` of `schemas_convnext`.
        kernels: schema `KERNELS`, for the work of each case.
        limits: the card's ceilings: "copy" in GB/s; "fp32", "tf32" and "bf16" in TFLOP/s.

    Returns:
        the counters without their duration, and tflops; gbps; intensity (FLOP a byte of DRAM); roof, the TFLOP/s that
        memory and the version's own units allow at that intensity; and of_roof_pct, the share of it that is reached.
    """
    work = kernels.drop_duplicates(CASE)[[*CASE, "gflop"]]
    rows = counters.merge(work, on=CASE, how="inner")
    rows = rows.assign(
        tflops=1e3 * rows["gflop"] / rows["duration_us"],
        gbps=1e3 * rows["dram_mb"] / rows["duration_us"],
        intensity=1e3 * rows["gflop"] / rows["dram_mb"],
    )
    on_tensor_cores = np.where(rows["version"].str.contains("TF32"), limits["tf32"], limits["bf16"])
    # The counter of the Tensor Cores is not 0 for all of cuDNN's FP32.
    takes_none = (rows["tensor_pct"] < IDLE) | rows["version"].str.contains("FP32")
    # A block's depthwise convolution is no matrix product: it stays on the CUDA cores.
    parts = map(block_products, rows["size"].str.rpartition("x")[2].astype(int))
    apart = np.where(
        rows["operator"] == "block", [depthwise / (depthwise + products) for depthwise, products in parts], 0.0
    )
    mixed = 1 / (apart / limits["fp32"] + (1 - apart) / on_tensor_cores)
    units = np.where(takes_none, limits["fp32"], mixed)
    rows["roof"] = np.minimum(rows["intensity"] * limits["copy"] / 1e3, units)
    rows["of_roof_pct"] = 100 * rows["tflops"] / rows["roof"]
    norms = rows["operator"] == "layer_norm"
    rows["version"] = rows["version"].where(~norms, rows["version"].replace(NORMS))
    return rows.drop(columns=["duration_us", "gflop"])


def readable(points: pd.DataFrame, card: str) -> pd.DataFrame:
    """Makes points of `roofline` readable, in columns that fit a page.

    Args:
        points: as `roofline` returns them, of one batch, size and stride.
        card: on which they were counted.
    """
    called = {
        "launches": ("launches", 0), "dram_mb": ("DRAM, MB", 1), "instructions": ("instr., 10⁶", 1),
        "sm_pct": ("SM, %", 0), "tensor_pct": ("tensor, %", 1), "intensity": ("FLOP/ byte", 1),
        "tflops": ("TFLOP/s", 2), "roof": ("roof", 1), "of_roof_pct": ("of roof, %", 0),
    }  # fmt: skip
    shown = points.assign(instructions=points["instructions"] / 1e6)
    for column, (_, places) in called.items():
        shown[column] = shown[column].map(f"{{:.{places}f}}".format)
    shown = shown.set_index(["operator", "version"])[list(called)].rename_axis(columns=card)
    return shown.rename(columns={column: title for column, (title, _) in called.items()})


def operator_seconds(root: Path, variant: str, operator: str) -> tuple[str, float] | None:
    """Returns the newest card's seconds of an operator, and the card's name; None without a record."""
    return _of_newest(root, "convnext_operators", lambda t: _where(t, variant=variant, operator=operator)["seconds"])


def of_one_image(transfers: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of Table IV: one image goes to the GPU, and its convolution's output comes back."""
    moved = transfers["what"].map({"to CPU": OUTPUT_BYTES}).fillna(IMAGE_BYTES)
    return transfers[transfers["bytes"] == moved]


def transfer_us(root: Path, part: str) -> tuple[str, float] | None:
    """Returns the newest card's µs of a part of Table IV for one image, from pageable memory; None without a record."""
    key = {"what": part, "memory": "pageable"}
    return _of_newest(root, "convnext_transfers", lambda table: _where(of_one_image(table), **key)["median_us"])


def block_us(root: Path, version: str) -> tuple[str, float] | None:
    """Returns the newest card's µs of a block of 64 channels at 32×32, in a graph or on its host's CPU; or None."""

    def took(table: pd.DataFrame) -> pd.Series[float]:
        versions = times(table, "block", 1)
        return versions["graph_us"].fillna(versions["processor_us"])[versions.index == version]

    return _of_newest(root, "convnext_kernels", took)


def _where(table: pd.DataFrame, **key: object) -> pd.DataFrame:
    """Returns the rows that have these values."""
    return table[(table[list(key)] == pd.Series(key)).all(axis=1)]


def _of_newest(
    root: Path, name: str, values_of: Callable[[pd.DataFrame], pd.Series[float]]
) -> tuple[str, float] | None:
    """Returns the newest card whose table has one of the values, and the first value; None without one."""
    for card, table in reversed(recorded(root, name).items()):
        if len(values := values_of(table)):
            return card, float(values.iloc[0])
    return None
