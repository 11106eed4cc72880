"""The cost of channels-last in cycles on the H100, by the profiles of windows and of whole steps."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas as pd

from medddpm.measure.profile import summaries, windows
from study.bench import tables as bench_tables
from study.numbers.texts import in_words
from study.profile import tables

_STARTS = tuple(f"window-{start}" for start in (0, 160, 300, 640))


@cache
def _kernels(root: Path) -> pd.DataFrame:
    kernels = tables.kernels(root, ("window", "step", *_STARTS))
    return kernels[kernels["gpu"] == "H100"]


@cache
def _ratios(root: Path) -> dict[str, pd.Series[float]]:
    """Returns channels-last's cycles divided by the baseline's, for every start of a window.

    Of windows that are summed from single launches' counters, and of windows that were profiled as a whole.
    """
    kernels, launches = _kernels(root), tables.launches(root, "H100")
    costs = {name: windows.costs(launches[name], kernels[kernels["config"] == name]) for name in ("BASE", "OPT2")}
    return {
        "summed": windows.from_every_start(costs["OPT2"], costs["BASE"])["cycles_active"],
        "profiled": windows.profiled(kernels, "OPT2", "BASE")["cycles_active"],
    }


def times_fewer(root: Path, which: str) -> str:
    """Returns how many times fewer cycles a window shows at most, `summed` or `profiled`: "99"."""
    return f"{1 / _ratios(root)[which].min():.0f}"


def times_as_many(root: Path, which: str) -> str:
    """Returns how many times as many cycles a window shows at most, `summed` or `profiled`: "126"."""
    return f"{_ratios(root)[which].max():.0f}"


@cache
def _papers_cudnn_ms(root: Path) -> float:
    """Returns the time of the kernels of a step of BASE under PyTorch 2.2.2, which has the paper's cuDNN 8.9.2, ms."""
    step = tables.launches(root, "H100", "step-torch-2-2-2")["BASE"]
    return float(windows.step_times({"BASE": step}, "BASE")["time_ms"].iloc[0])


def papers_cudnn_ms(root: Path) -> str:
    """Returns the time of the kernels of a step of BASE under the paper's cuDNN: "1138"."""
    return f"{_papers_cudnn_ms(root):.0f}"


def papers_cudnn_times(root: Path, setting: str) -> str:
    """Returns that time divided by a setting's whole step under the book's cuDNN: "27.4"."""
    steps = bench_tables.rows_of(bench_tables.recorded(root)["H100"], bench_tables.OURS, "step")
    return f"{_papers_cudnn_ms(root) / steps['median_ms'][setting]:.1f}"


def windows_profiled(root: Path) -> str:
    """Returns how many windows were profiled as a whole: "Five"."""
    return in_words(len(_ratios(root)["profiled"])).capitalize()


def cycles(root: Path, view: str, setting: str = "OPT2") -> str:
    """Returns a setting's cycles, by default channels-last's, divided by the baseline's in a window or step: "1.28"."""
    return f"{_means(root, setting)[view]:.2f}"


@cache
def _means(root: Path, setting: str) -> dict[str, float]:
    """Returns a setting's ratios by view, the means over runs; the claims' four digits round otherwise."""
    of_run = tables.each_run(tables.kernels(root), lambda table: summaries.relative(summaries.summary(table)))
    means = tables.over_runs(of_run)["cycles"].loc["H100"].xs(setting, level="config")
    return {str(view): float(ratio) for view, ratio in means.items()}
