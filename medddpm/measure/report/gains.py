"""Predicts a training step's time under other tools from its trace: each kind of kernel by a factor of other networks.

The factors are those of three networks that were traced under every tool (`gains.csv` beside this file, made by
`factors`). They stay as they are while other networks are predicted, which is what shows how good they are.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from medddpm.measure.profile import summaries
from medddpm.measure.report import bounds
from medddpm.measure.report.folder import Profile

UNTOUCHED = "pytorch"
PREDICTED = ("tf32", "channels-last", "autocast-benchmark", "accelerate", "graphed-step")
"""The tools whose times are predicted, by their names in `medddpm compare`."""
FROM = "nnU-Net's PlainConvUNet, MONAI's SegResNet and SwinUNETR on an H200"
OFF = "On these three themselves the times are off by 7% in the median and by 17% at most."
IDLE = "idle"  # the kind of the time in which the GPU does nothing
NOTICED = 0.01  # of a step's time: a network with less of a kind says nothing of its range; a choice
ALREADY = 0.05  # of a step's time: as much of it in 16-bit, compiled or fused kernels is a step under a tool; a choice
_HALVES = r"bf16|f16|[hH]alf|BFloat16"
_FLOAT32 = r"xmma_(?:fprop|dgrad|wgrad)\w*_f32f32_f32f32_f32|implicit_convolve_sgemm"
COLUMNS = ("tool", "kind", "factor", "least", "most")
_FILE = Path(__file__).with_name("gains.csv")


@dataclass(frozen=True)
class Gain:
    """A step's time under a tool.

    Args:
        tool: its name in `medddpm compare`.
        ms: as the factors predict it.
        least, most: with each kind's least and most favourable factor.
        faster: how many times as fast as the profiled step it is to be.
    """

    tool: str
    ms: float
    least: float
    most: float
    faster: float


def spent(profile: Profile) -> pd.Series[float]:
    """Returns the milliseconds of a step by kind of kernel (`families.GROUPS`), and those in which the GPU idles."""
    bounded = bounds.of_step(profile)
    ms = summaries.family_shares(profile.by_launch, by="group").iloc[0] * bounded.busy_ms
    ms[IDLE] = max(0.0, (bounded.wall_ms or 0.0) - bounded.busy_ms)
    return ms


def factors(networks: Mapping[str, Mapping[str, Profile]]) -> pd.DataFrame:
    """Makes the factors: a kind's time under a tool by its time without one, each network's step counting the same.

    Args:
        networks: by a network's name its profiles by tool, `UNTOUCHED` among them.

    Returns:
        `COLUMNS`, a row for each tool and kind. `least` and `most` are of single networks, without those where the
        kind has less than `NOTICED` of the step.
    """
    before = {name: spent(profiles[UNTOUCHED]) for name, profiles in networks.items()}
    rows = []
    for tool in PREDICTED:
        known = [name for name in networks if tool in networks[name]]
        after = {name: spent(networks[name][tool]) for name in known}
        shares = pd.DataFrame({name: before[name] / before[name].sum() for name in known}).fillna(0.0)
        left = pd.DataFrame({name: after[name] / before[name].sum() for name in known}).reindex(shares.index)
        for kind in shares.index:
            factor = left.loc[kind].sum() / shares.loc[kind].sum()
            single = (left.loc[kind].fillna(0.0) / shares.loc[kind])[shares.loc[kind] >= NOTICED]
            least, most = (single.min(), single.max()) if len(single) else (factor, factor)
            rows.append((tool, kind, factor, min(least, factor), max(most, factor)))
    return pd.DataFrame(rows, columns=list(COLUMNS)).round(4)


@functools.cache
def frozen() -> pd.DataFrame:
    """Reads the factors that predictions are made by, as `factors` returns them."""
    return pd.read_csv(_FILE)


def predicted(profile: Profile, table: pd.DataFrame | None = None) -> list[Gain]:
    """Predicts a training step's time under each tool.

    Args:
        profile: of a step as PyTorch runs it by default, without autocast and `torch.compile`; see `refused`.
        table: of `factors`; by default the frozen ones.
    """
    now, gains = spent(profile), []
    for tool, rows in (frozen() if table is None else table).groupby("tool", sort=False):
        by_kind = rows.set_index("kind")[["factor", "least", "most"]].reindex(now.index).fillna(1.0)
        ms, least, most = by_kind.mul(now, axis=0).sum()
        gains.append(Gain(str(tool), float(ms), float(least), float(most), float(now.sum() / ms)))
    return gains


def refused(profile: Profile) -> str:
    """Says why a step's times are not predicted; empty if they are."""
    phases = profile.launches["phase"].dropna().astype(str)
    if not profile.program.step_ms:
        return "The step's time without a profiler was not recorded."
    if profile.program.varies or profile.program.gpus > 1:
        return "The factors are those of steps on one GPU that launch the same kernels each time."
    if not phases.str.contains("backward").any():
        return "The factors are those of training steps with marked phases, and this profile has no backward pass."
    kernels = profile.by_launch
    time = kernels["count"] * kernels["duration_ns"]
    tool = kernels["family"].str.match("fused |triton ") | kernels["kernel"].str.contains(_HALVES)
    if time[tool].sum() > ALREADY * time.sum():
        return "The factors are those of float32 steps as PyTorch runs them by default: this one has a tool already."
    if time[kernels["kernel"].str.contains(_FLOAT32)].sum() > ALREADY * time.sum():
        return "This step's convolutions are in float32: switch TF32 on, as PyTorch does by default, and profile again."
    return ""


def measured(profile: Profile, others: Iterable[Profile]) -> dict[str, float]:
    """Returns the milliseconds of the same step under other tools, by tool, as far as `others` has profiles of it."""
    step, found = _identity(profile), {}
    for other in others:
        named, times = _identity(other), other.program.step_ms
        if step and times and all(step.get(key) == named.get(key) for key in ("sha256", "function")):
            found[str(named.get("tool"))] = statistics.median(times)
    return found


def _identity(profile: Profile) -> Mapping[str, object]:
    told: object = profile.facts
    for key in ("measurement", "program", "identity"):
        told = told.get(key) if isinstance(told, Mapping) else None
    return told if isinstance(told, Mapping) else {}
