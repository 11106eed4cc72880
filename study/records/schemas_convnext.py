"""The columns of the tables of chapter 18, the CUDA report."""

from __future__ import annotations

from medddpm.measure.schemas import Column, Schema

OPERATORS = Schema(
    {
        "variant": Column("str", "what computes: the CPU with so many threads, or with operators on the GPU"),
        "threads": Column("int64", "of the CPU"),
        "operator": Column("str", "as the report's Table I names it; total: the wall time of the whole"),
        "seconds": Column("float64", "of all its calls; on the GPU with both transfers", unit="s"),
        "calls": Column("int64", "how often it was called; of total, evaluations of the network"),
    }
)
_CASE = {
    "operator": Column("str", "what is computed", allowed=("conv2d", "layer_norm", "block")),
    "batch": Column("int64", "images at once"),
    "size": Column("str", "H×W×C of an image, as 32x32x64"),
    "stride": Column("int64", "of the convolution; else 1"),
    "version": Column("str", "how, as `study.convnext.versions` names it"),
}
KERNELS = Schema(
    {
        **_CASE,
        "how": Column(
            "str",
            "graph: repeated in one CUDA graph, the device's time; launched: called from Python, one after another; "
            "processor: on the CPU",
            allowed=("graph", "launched", "processor"),
        ),
        "median_us": Column("float64", "time of one", unit="us"),
        "p10_us": Column("float64", "tenth percentile of the samples", unit="us"),
        "p90_us": Column("float64", "ninetieth percentile of the samples", unit="us"),
        "samples": Column("int64", "how often it was timed; of a graph, replays"),
        "error": Column("float64", "norm of the difference from float64 divided by its norm, a block's less its input"),
        "gflop": Column("float64", "products and convolutions of the operator as it is written", unit="GFLOP"),
        "least_mb": Column("float64", "input, weights and output in float32, each moved once", unit="MB"),
    }
)
COUNTERS = Schema(
    {
        **_CASE,
        "launches": Column("int64", "kernels that one computation launches"),
        "duration_us": Column("float64", "their time under ncu, caches flushed before each", unit="us"),
        "dram_mb": Column("float64", "read from DRAM and written to it", unit="MB"),
        "l2_mb": Column("float64", "moved between L2 and the multiprocessors", unit="MB"),
        "instructions": Column("float64", "warp instructions executed", unit="inst"),
        "sm_pct": Column("float64", "SM throughput, share of its peak, weighted by time", unit="%"),
        "tensor_pct": Column("float64", "Tensor Core pipe, active share of active cycles, weighted by time", unit="%"),
    }
)
TRANSFERS = Schema(
    {
        "what": Column(
            "str",
            "to GPU, to CPU: a copy; kernel: the tiled convolution between them, in a CUDA graph; whole: all of them "
            "in one call that makes its tensors",
            allowed=("to GPU", "kernel", "to CPU", "whole"),
        ),
        "memory": Column("str", "the host's", allowed=("pageable", "pinned")),
        "bytes": Column("int64", "of the copy; of kernel and whole, of its input", unit="byte"),
        "median_us": Column("float64", "time of one, waited for", unit="us"),
        "p10_us": Column("float64", "tenth percentile of the samples", unit="us"),
        "p90_us": Column("float64", "ninetieth percentile of the samples", unit="us"),
        "samples": Column("int64", "how often it was timed"),
    }
)
TRAINING = Schema(
    {
        "data": Column("str", "the images it was trained on", allowed=("digits", "cifar-10")),
        "first": Column("int64", "first step of a window, from 1"),
        "steps": Column("int64", "of the window"),
        "loss": Column("float64", "mean absolute error of the predicted noise over the window"),
    }
)
SAMPLES = Schema(
    {
        "data": Column("str", "the images it was trained on", allowed=("digits", "cifar-10")),
        "image": Column("int64", "number of the sample"),
        "row": Column("int64", "of the pixel, from the top"),
        "column": Column("int64", "of the pixel, from the left"),
        "red": Column("int64", "0 to 255"),
        "green": Column("int64", "0 to 255"),
        "blue": Column("int64", "0 to 255"),
    }
)
