"""The rows that `python -m study scaling` measures, and the plan of a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from medddpm.training.config import TrainConfig
from study.bench.networks import NETWORKS as BENCHED

NETWORKS = ("med-ddpm", "med-ddpm-brats")
SETTINGS = ("FAST", "OPT1")  # by default
GPUS = (1, 2, 4, 8)
MEASURES = ("step", "all-reduce", "sample")
DTYPES = ("fp32", "bf16")
SHARDED = ("BASE", "OPT1")  # which leave the weights as they are
WEAK = (1, 2)  # volumes of a step on each GPU; the published step has 2
BUCKETS = (TrainConfig.bucket_mib, 0)  # MiB of gradients summed at a time; 0 for all at once, after the backward pass


@dataclass(frozen=True)
class Case:
    """One row.

    Args:
        network: out of `NETWORKS`.
        setting: a name in `medddpm.switches.SETTINGS`.
        gpus: processes, each with a GPU.
        measure: out of `MEASURES`.
        micro_steps: volumes of a step on each GPU, one after the other.
        gradient_dtype: in which gradients are sent; None if none are.
        side: of a volume, in voxels.
        channels: base width.
        weights: "replicated" on every GPU, or "sharded" (`study.scaling.sharded`).
        bucket_mib: as for `TrainConfig`; None if no gradients of a step are summed.
    """

    network: str
    setting: str
    gpus: int
    measure: str
    micro_steps: int = 1
    gradient_dtype: str | None = None
    side: int = 128
    channels: int = 64
    weights: str = "replicated"
    bucket_mib: int | None = None

    @property
    def size(self) -> str:
        """D×H×W of a volume, as 128x128x128."""
        return BENCHED[self.network].size(self.side)

    @property
    def word(self) -> str:
        """Its argument of a launch: `step:2:`, `step:2:fp32:32` with the bucket, or `step:1:fp32:sharded`."""
        sharded = ":sharded" if self.weights == "sharded" else ""
        bucket = "" if self.bucket_mib is None else f":{self.bucket_mib}"
        return f"{self.measure}:{self.micro_steps}:{self.gradient_dtype or ''}{sharded}{bucket}"

    @property
    def key(self) -> str:
        """The name of its file."""
        place = f"{self.network}_{self.size}_{self.channels}_{self.setting}_{self.gpus}"
        sharded = "_sharded" if self.weights == "sharded" else ""
        bucket = "" if self.bucket_mib is None else f"_{self.bucket_mib}"
        return f"{place}_{self.measure}_{self.micro_steps}_{self.gradient_dtype or 'none'}{sharded}{bucket}".lower()

    @property
    def title(self) -> str:
        """Its name in progress lines and messages."""
        gpus = f"{self.gpus} GPU{'s' * (self.gpus > 1)}"
        volumes = f" of {self.micro_steps} volume{'s' * (self.micro_steps > 1)} a GPU" if self.measure == "step" else ""
        dtype = f", {self.gradient_dtype} gradients" if self.gradient_dtype else ""
        sharded = ", sharded weights" if self.weights == "sharded" else ""
        in_buckets = f" in buckets of {self.bucket_mib} MiB" if self.bucket_mib else " at once"
        how = "" if self.bucket_mib is None else in_buckets
        return f"{self.network} {self.setting}, {gpus}: {self.measure}{volumes}{dtype}{how}{sharded}"


def case(word: str, **place: object) -> Case:
    """Returns the row of a `Case.word`; `place` has its launch's network, setting, gpus, side and channels."""
    measure, micro_steps, dtype, *how = word.split(":")
    sharded = how == ["sharded"]
    return Case(
        measure=measure,
        micro_steps=int(micro_steps),
        gradient_dtype=dtype or None,
        weights="sharded" if sharded else "replicated",
        bucket_mib=int(how[0]) if how and not sharded else None,
        **place,  # type: ignore[arg-type]
    )


def plan(
    networks: Sequence[str] = NETWORKS,
    settings: Sequence[str] = SETTINGS,
    gpus: Sequence[int] = GPUS,
    measures: Sequence[str] = MEASURES,
    *,
    side: int | None = None,
    channels: int = 64,
    sharded: bool = False,
    buckets: Sequence[int] = BUCKETS,
) -> list[list[Case]]:
    """Returns the rows of each launch, in the order they are measured.

    A launch has one setting, network and number of GPUs. Weak scaling keeps `WEAK` volumes on each GPU. Strong scaling
    shares out a step of as many volumes as the largest number of GPUs, at least 2.

    Args:
        networks: out of `NETWORKS`.
        settings: names in `medddpm.switches.SETTINGS`.
        gpus: numbers of GPUs.
        measures: out of `MEASURES`. With a single GPU nothing is sent.
        side: the volumes', in voxels; by default each network's own.
        channels: base width.
        sharded: also steps with sharded weights, under the settings of `SHARDED`.
        buckets: MiB of gradients summed at a time, each a row of every step on several GPUs.
    """
    together, launches = max(2, *gpus), []
    for setting in settings:
        for network in networks:
            for count in gpus:
                place = {
                    "network": network, "setting": setting, "gpus": count, "side": side or BENCHED[network].side,
                    "channels": channels,
                }  # fmt: skip
                words = _words(count, together, buckets)
                if sharded and setting in SHARDED and count > 1:
                    words += [f"step:1:{dtype}:sharded" for dtype in DTYPES]
                rows = [case(word, **place) for word in words if word.split(":")[0] in measures]
                if rows:
                    launches.append(rows)
    return launches


def _words(gpus: int, together: int, buckets: Sequence[int]) -> list[str]:
    micro_steps = sorted({*WEAK, *([together // gpus] if together % gpus == 0 else [])})
    if gpus == 1:
        return [*(f"step:{count}:" for count in micro_steps), "sample:1:"]
    steps = {
        dtype: [f"step:{count}:{dtype}:{bucket}" for count in micro_steps for bucket in buckets] for dtype in DTYPES
    }
    sums = [f"all-reduce:1:{dtype}" for dtype in DTYPES]
    return [*steps["fp32"], *sums, *steps["bf16"], "sample:1:"]
