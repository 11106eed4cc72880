"""How each number of the paper is taken from a profile: which launches (`SUBJECTS`), and what of them (`METRICS`).

After Sections 3.2, 4 and 6 of ICPE '26, arXiv:2606.19365. A kind of work (elementwise, layout, GEMM …) is a group of
`medddpm.study.profile.families`, a kernel's name one of its families; an implicit GEMM is a convolution.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pandas as pd

from medddpm.study.claims.paper import Claim
from medddpm.study.profile import summaries
from medddpm.study.profile.families import family_named
from medddpm.study.profile.kernel_names import function_name

TENSOR_FLOOR = 1.0  # percent of a launch's active cycles
OPTIMIZED = ("OPT1", "OPT2", "OPT12")


class Run:
    """One profile of one machine and view, all settings: what the metrics are taken from."""

    def __init__(self, table: pd.DataFrame) -> None:
        """`table`: schema `KERNELS`, of a single view."""
        self.table = table

    @functools.cached_property
    def summary(self) -> pd.DataFrame:
        """`medddpm.study.profile.summaries.summary`, a row a setting."""
        return summaries.summary(self.table).droplevel("view")

    @functools.cached_property
    def shares(self) -> pd.DataFrame:
        """Shares of the time by family, a row a setting."""
        return summaries.family_shares(self.table).droplevel("view")

    def of(self, config: str) -> pd.DataFrame:
        """The launches of a setting."""
        return self.table[self.table["config"] == config]

    def ratio(self, config: str, name: str) -> float:
        """A number of the summary by that of BASE."""
        return self.value(config, name) / self.value(summaries.BASE, name)

    def value(self, config: str, name: str) -> float:
        """A number of the summary."""
        return float(self.summary[name].to_dict()[config])


Pick = Callable[[pd.DataFrame], pd.DataFrame]  # some of one setting's launches
Rule = Callable[[Run, str, Pick], float]  # the number, of a run's setting and the launches picked from it


@dataclass(frozen=True)
class Subject:
    """What a claim speaks of.

    Args:
        meaning: in words, as "the convolution …".
        pick: the launches of it.
        kind: where it is ranked among the kinds of work: which it is.
    """

    meaning: str
    pick: Pick
    kind: str = ""


def time_of(table: pd.DataFrame) -> pd.Series[float]:
    """The time of a row's launches, ns."""
    return table["count"] * table["duration_ns"]


def busiest(table: pd.DataFrame) -> pd.DataFrame:
    """The launches of the one kernel, by its whole name, that takes the most time."""
    return table[table["kernel"] == time_of(table).groupby(table["kernel"]).sum().idxmax()] if len(table) else table


def short_name(table: pd.DataFrame) -> str:
    """What the first kernel of a table is called, without namespace, arguments and tile sizes."""
    return function_name(table["kernel"].iloc[0]).partition("_tilesize")[0] if len(table) else "none"


def of_groups(*groups: str) -> Pick:
    """The launches of some kinds of work, as `profile.families.GROUPS` has them."""
    return lambda table: table[table["family"].map(lambda name: family_named(name).group in groups)]


def of_paper_name(abbreviation: str) -> Pick:
    """The launches that the paper's authors would have filed under KN1 … KN8 of Table 2."""
    return lambda table: table[table["family"].map(lambda name: family_named(name).paper == abbreviation)]


def _either(*picks: Pick) -> Pick:
    return lambda table: table[table.index.isin([i for pick in picks for i in pick(table).index])]


def _whole(table: pd.DataFrame) -> pd.DataFrame:
    return table


GEMM = ("convolution", "matmul")
GEMMS = of_groups(*GEMM)
DOMINANT = Subject("the convolution or GEMM kernel with the most time", lambda t: busiest(GEMMS(t)))
# Pointwise kernels keep the same pipe busy for 2 to 3% of their cycles without a single matrix product.
TENSOR = Subject(
    f"convolutions and GEMMs whose Tensor Core pipe is active for {TENSOR_FLOOR:g}% of their cycles or more",
    lambda t: GEMMS(t[t["tensor_pct"] >= TENSOR_FLOOR]),
)
SUBJECTS = {
    "whole workload": Subject("all launches", _whole),
    "average over kernels": Subject("all launches", _whole),
    "kernel mix": Subject("all launches", _whole),
    "dominant convolution": DOMINANT,
    "main convolution": DOMINANT,
    "dominant GEMM": DOMINANT,
    "dominant kernels": Subject("all convolutions and GEMMs", GEMMS),
    "conv/GEMM": Subject("all convolutions and GEMMs", GEMMS),
    "GEMM": Subject("all convolutions and GEMMs", GEMMS),
    "tensor-core GEMM": Subject("all convolutions and GEMMs", GEMMS, GEMM[0]),
    "Tensor Core work": TENSOR,
    "Tensor Core path": TENSOR,
    "normalization": Subject("norms", of_groups("normalization"), "normalization"),
    "elementwise": Subject("pointwise kernels", of_groups("pointwise"), "pointwise"),
    "row-wise moments": Subject("kernels that Table 2 calls KN3", of_paper_name("KN3")),
    "elementwise_kernel": Subject("kernels that Table 2 calls KN4, copies among them", of_paper_name("KN4")),
    "normalization + pointwise + layout": Subject(
        "norms, pointwise and layout kernels", of_groups("normalization", "pointwise", "layout")
    ),
    "elementwise + layout": Subject(
        "layout kernels and those that Table 2 calls KN4", _either(of_paper_name("KN4"), of_groups("layout"))
    ),
    "sm80_xmma_fprop_implicit_gemm": Subject("kernels that Table 2 calls KN1", of_paper_name("KN1")),
    "implicit_convolveNd_sgemm": Subject("kernels that Table 2 calls KN6", of_paper_name("KN6")),
    "_5x_cudnn_volta_scudnn": Subject("kernels that Table 2 calls KN7", of_paper_name("KN7")),
    **{f"KN{n}": Subject(f"kernels that Table 2 calls KN{n}", of_paper_name(f"KN{n}")) for n in range(1, 9)},
}

# By the paper's words: the summary's sums and means, and the instruction classes.
AVERAGES = {
    "Tensor Core utilization": "tensor_pct",
    "CUDA core utilization": "fma_pct",
    "integer ALU utilization": "alu_pct",
    "SM throughput": "sm_throughput_pct",
    "L1 hit rate": "l1_hit_pct",
    "L2 hit rate": "l2_hit_pct",
    "DRAM bandwidth utilization": "dram_pct",
}
AGAINST_BASE = {
    "SM cycles": "cycles",
    "instructions": "instructions",
    "IPC": "ipc_geometric",
    "active warps per cycle": "warps_per_cycle",
    "long-latency dependency stalls": "stall_long_scoreboard",
    "math pipe throttle stalls": "stall_math_pipe",
    "divergent branch stalls": "stall_branch",
}
MEANS = (*AVERAGES, "IPC", "active warps per cycle")  # what `summaries` averages; the rest it adds up
INSTRUCTIONS = {
    "FP": ("inst_fp",),
    "Integer": ("inst_int",),
    "INT": ("inst_int",),
    "UD": ("inst_uniform",),
    "load/store": ("inst_ldst",),
    "control": ("inst_control",),
    "uniform-datapath + movement": ("inst_uniform", "inst_move"),
}


def time_share(table: pd.DataFrame, chosen: pd.DataFrame) -> float:
    """The share of a table's time in some of its launches, percent."""
    return 100 * float(time_of(chosen).sum() / time_of(table).sum())


def instruction_share(chosen: pd.DataFrame, classes: Iterable[str]) -> float:
    """The share of the instructions that some launches execute in some classes, percent; missing if none is known."""
    mix = summaries.instruction_mix(chosen)
    return 100 * float(mix[list(classes)].sum(axis="columns", skipna=False).iloc[0]) if len(mix) else math.nan


def rank_by_priority(table: pd.DataFrame, kind: str) -> float:
    """The place of a kind of work among all by summed priority, from 1; missing where there are no scores of it.

    Args:
        table: one setting's launches.
        kind: one of `profile.families.GROUPS`; convolutions and matrix products are one kind, "convolution".
    """
    scores = summaries.priorities(table, by="group").sum(min_count=1)
    kinds = scores.groupby(scores.index.map(lambda group: GEMM[0] if group in GEMM else group)).sum(min_count=1)
    return float(kinds.rank(ascending=False, method="min").to_dict().get(kind, math.nan))


def _average(name: str) -> Rule:
    return lambda run, config, _pick: run.value(config, name)


def _ratio(name: str, form: Callable[[float], float]) -> Rule:
    return lambda run, config, _pick: form(run.ratio(config, name))


def _instructions(classes: Iterable[str]) -> Rule:
    return lambda run, config, pick: instruction_share(pick(run.of(config)), classes)


def _by_base(rule: Rule) -> Rule:
    return lambda run, config, pick: rule(run, config, pick) / rule(run, summaries.BASE, pick)


def _cycles(run: Run, config: str, pick: Pick) -> float:
    chosen = pick(run.of(config))
    return float((chosen["count"] * chosen["cycles_active"]).sum(min_count=1))


def _ipc(run: Run, config: str, pick: Pick) -> float:
    chosen = pick(run.of(config))
    return float((chosen["count"] * chosen["instructions"]).sum(min_count=1)) / _cycles(run, config, pick)


def _mix_change(run: Run, config: str, _pick: Pick) -> float:
    """The largest change of any family's share of the time, percentage points."""
    shares = run.shares.loc[[config, summaries.BASE]].to_numpy()
    return 100 * float(abs(shares[0] - shares[1]).max())


METRICS: dict[str, Rule] = {
    **{words: _average(name) for words, name in AVERAGES.items()},
    **{f"{words}, relative to BASE": _ratio(name, lambda ratio: ratio) for words, name in AGAINST_BASE.items()},
    "SM cycles, reduction": _ratio("cycles", lambda ratio: 1 / ratio),
    "dynamic instructions, reduction": _ratio("instructions", lambda ratio: 1 / ratio),
    "IPC, increase": _ratio("ipc_geometric", lambda ratio: 100 * (ratio - 1)),
    "share of kernel time": lambda run, config, pick: time_share(run.of(config), pick(run.of(config))),
    "change against BASE": _mix_change,
    "cycles": _cycles,
    "IPC": _ipc,
    **{f"{words} share of instructions": _instructions(classes) for words, classes in INSTRUCTIONS.items()},
    **{f"{words} share of IPC stack": _instructions(classes) for words, classes in INSTRUCTIONS.items()},
    **{f"{words} share, relative to BASE": _by_base(_instructions(c)) for words, c in INSTRUCTIONS.items()},
}
STALLS = [
    f"{words} stalls, relative to BASE"
    for words in ("long-latency dependency", "math pipe throttle", "divergent branch")
]


RANK = "rank by cumulative priority score"
NAME = "kernel name"
AGAINST_V100 = "cycles against V100, reduction"


def settings_of(claim: Claim) -> tuple[str, ...]:
    """The settings a claim speaks of; "best" and "all" are the three optimized ones, which BASE is compared with."""
    return OPTIMIZED if claim.config in ("best", "all") else tuple(claim.config.split(";"))


def numbers(claim: Claim, run: Run, settings: tuple[str, ...] | None = None) -> list[float]:
    """The claim's numbers in one run: one, or one a setting and class of stall where it speaks of several.

    Args:
        claim: one of which `is_measured` holds.
        run: where to take them.
        settings: those to look at; by default all that the claim speaks of.

    Returns:
        in the claim's unit; none where the run lacks a setting or a counter.
    """
    settings = settings or settings_of(claim)
    needed = {*settings, summaries.BASE} if uses_base(claim) else set(settings)
    if not needed <= set(run.table["config"]):
        return []
    metrics = STALLS if claim.metric.startswith("all stall classes") else (claim.metric,)
    subject = SUBJECTS[claim.subject]
    if claim.metric == RANK:
        values = [rank_by_priority(run.of(config), subject.kind) for config in settings]
    else:
        values = [METRICS[metric](run, config, subject.pick) for config in settings for metric in metrics]
    if claim.config == "best":
        values = [max(values)]
    return values if all(math.isfinite(value) for value in values) else []


def uses_base(claim: Claim) -> bool:
    """Whether a claim's number is one by that of BASE."""
    return claim.metric.startswith("all stall") or any(w in claim.metric for w in ("BASE", "reduction", "increase"))


def is_measured(claim: Claim) -> bool:
    """Whether a profile can speak to a claim."""
    return claim.metric in (*METRICS, RANK, NAME, AGAINST_V100) or claim.metric.startswith("all stall classes")


def over_runs(claim: Claim, runs: Iterable[Run]) -> list[list[float]]:
    """`numbers` of every run that has them."""
    return [values for run in runs if (values := numbers(claim, run))]
