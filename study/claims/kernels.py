"""The kernels of one profiled run, and some of its launches, as Sections 3.2, 4 and 6 of the paper speak of them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pandas as pd

from medddpm.measure.profile import summaries
from medddpm.measure.profile.families import family_named
from medddpm.measure.profile.kernel_names import function_name

TENSOR_FLOOR = 1.0  # percent of active cycles: pointwise kernels keep the pipe busy for 2 to 3% without any product
TIE = 0.2  # scores that no tolerance of a measured quantity tells apart


class KernelsOfRun:
    """The kernels of one profiled run of one machine, in one view, under every setting."""

    def __init__(self, table: pd.DataFrame) -> None:
        """`table`: schema `KERNELS`, of a single view."""
        self.table = table

    @functools.cached_property
    def summary(self) -> pd.DataFrame:
        """`medddpm.measure.profile.summaries.summary`, one row per setting."""
        return summaries.summary(self.table).droplevel("view")

    @functools.cached_property
    def shares(self) -> pd.DataFrame:
        """Each family's share of the time, one row per setting."""
        return summaries.family_shares(self.table).droplevel("view")

    def of(self, setting: str) -> pd.DataFrame:
        """Returns the launches under a setting."""
        return self.table[self.table["config"] == setting]

    def value(self, setting: str, name: str) -> float:
        """Returns one number of the summary."""
        return float(self.summary[name].to_dict()[setting])


Runs = Mapping[tuple[str, str], list[KernelsOfRun]]  # by card and part


@dataclass(frozen=True)
class Launches:
    """Some launches of a run.

    Args:
        words: their name in a sentence.
        kinds: kinds of work (`medddpm.measure.profile.families`, their groups) and abbreviations of the paper's Table
            2, KN1 to KN8; empty for every launch.
        narrow: takes a part of the launches of these kinds.
        one_kernel: they are of a single kernel.
    """

    words: str
    kinds: tuple[str, ...] = ()
    narrow: Callable[[pd.DataFrame], pd.DataFrame] | None = None
    one_kernel: bool = False

    def of(self, table: pd.DataFrame) -> pd.DataFrame:
        """Returns their rows in the table of the launches under one setting."""
        if self.kinds:
            families = {name: family_named(name) for name in table["family"].unique()}
            names = [n for n, family in families.items() if {family.group, family.paper} & set(self.kinds)]
            table = table[table["family"].isin(names)]
        return self.narrow(table) if self.narrow and len(table) else table


def time_of(table: pd.DataFrame) -> pd.Series[float]:
    """Returns the time of each row's launches, ns."""
    return table["count"] * table["duration_ns"]


def _longest(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["kernel"] == time_of(table).groupby(table["kernel"]).sum().idxmax()]


def _on_tensor_cores(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["tensor_pct"] >= TENSOR_FLOOR]


_GEMMS = ("convolution", "matmul")  # an implicit GEMM is a convolution
ALL = Launches("all launches")
GEMMS = Launches("all convolutions and GEMMs", _GEMMS)
DOMINANT = Launches("the convolution or GEMM that takes the most time", _GEMMS, _longest, one_kernel=True)
TENSOR = Launches(
    f"convolutions and GEMMs whose Tensor Core pipe is active for {TENSOR_FLOOR:g}% of their cycles or more",
    _GEMMS,
    _on_tensor_cores,
)
POINTWISE = Launches("pointwise kernels", ("pointwise",))
NORMS = Launches("norms", ("normalization",))
KN1, KN2, KN3, KN4, KN5, KN6, KN7, KN8 = (
    Launches(f"the kernels that Table 2 calls {name}", (name,)) for name in (f"KN{n}" for n in range(1, 9))
)


def time_share(table: pd.DataFrame, launches: Launches) -> float:
    """Returns the share of the time that some launches take, percent."""
    return 100 * float(time_of(launches.of(table)).sum() / time_of(table).sum())


def instruction_share(chosen: pd.DataFrame, *classes: str) -> float:
    """Returns the share of instructions that belong to some classes, percent; NaN if no instruction was counted."""
    mix = summaries.instruction_mix(chosen)
    return 100 * float(mix[list(classes)].sum(axis="columns", skipna=False).iloc[0]) if len(mix) else math.nan


def summed(chosen: pd.DataFrame, counter: str) -> float:
    """Returns a counter's sum over some launches; NaN if there is none."""
    return float((chosen["count"] * chosen[counter]).sum(min_count=1))


def ranks(table: pd.DataFrame, kind: str, tie: float = TIE) -> list[float]:
    """Returns the first and the last rank of a kind of work by summed priority, from 1; NaN where it has no score.

    Kinds whose scores lie within `tie` of each other share their ranks. GEMMs rank as convolutions.
    """
    first, *others = _GEMMS
    scores = summaries.priorities(table, by="group").sum(min_count=1)
    kinds = scores.groupby(scores.index.map(lambda group: first if group in others else group)).sum(min_count=1)
    score = float(kinds.to_dict().get(kind, math.nan))
    if math.isnan(score):
        return [math.nan, math.nan]
    return [float(((1 - tie) * kinds > score).sum() + 1), float((kinds >= (1 - tie) * score).sum())]


def short_name(table: pd.DataFrame) -> str:
    """Returns the name of a table's first kernel, without namespace, arguments and tile sizes."""
    return function_name(table["kernel"].iloc[0]).partition("_tilesize")[0] if len(table) else "none"
