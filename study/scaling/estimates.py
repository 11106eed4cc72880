"""What large trainings would take, on paper: measured rates of one GPU and of one machine, and stated assumptions."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch.utils.flop_counter import FlopCounterMode

from medddpm.data.layouts import BRATS, HEAD
from medddpm.training.config import TrainConfig
from medddpm.training.gradients import gradient_sum
from study.bench.networks import NETWORKS, Problem, planned
from study.bench.tables import rows_of
from study.scaling.tables import as_trained

COUNTS = tuple(2**power for power in range(11))  # 1 to 1024
BACKWARD = 2 / 3  # of a step's work: a backward pass is two forward passes'
HOUR = 3.6e6  # ms
BYTES = {"fp32": 4, "bf16": 2}


@dataclass(frozen=True)
class Cluster:
    """What no record tells: assumptions.

    Args:
        gpus_a_node: GPUs of a machine.
        node_gbs: what a machine sends and receives over the network at once, in GB/s. Eight adapters of 400 Gb/s, as in
            MLPerf's descriptions of machines with eight H200s, are 400.
        hop_us: latency of a message between two machines.
        storage_gbs: what the file system delivers to all machines together, in GB/s.
        gpu_gb, host_gb: memory of a GPU and of a machine. Prepared volumes may take half of either.
        dollars: price of a GPU hour.
    """

    gpus_a_node: int = 8
    node_gbs: float = 400.0
    hop_us: float = 10.0
    storage_gbs: float = 100.0
    gpu_gb: float = 140.0
    host_gb: float = 2000.0
    dollars: float = 3.0


@dataclass(frozen=True)
class DataSet:
    """A training: each volume is seen `epochs` times, as prepared for a network of `study.bench.networks`."""

    name: str
    network: str
    volumes: int
    epochs: int

    @property
    def volume_mb(self) -> float:
        """A prepared volume, in MB: images in float32, masks in int8."""
        layout, own = BRATS if "brats" in self.network else HEAD, NETWORKS[self.network]
        voxels = math.prod(own.sides(own.side))
        return voxels * (4 * layout.image_channels + layout.mask_channels) / 1e6


DATA_SETS = (
    DataSet("193 BraTS subjects", "med-ddpm-brats", 193, 518),
    DataSet("10 000 volumes of 128³", "med-ddpm", 10_000, 100),
    DataSet("1 000 000 volumes of 128³", "med-ddpm", 1_000_000, 10),
)
"""The first one's epochs make 50 000 steps of two volumes, which is what Med-DDPM's authors train."""


@dataclass(frozen=True)
class Rate:
    """A network under a setting, as measured on one machine.

    Args:
        network, setting: which.
        step_ms: one GPU's step of one volume.
        record: the table it is from.
        bus_gbs: the speed at which GPUs of a machine sum, in GB/s that each sends and receives; None where that was
            not measured.
        left_ms: what a step on several GPUs, the most that were measured, takes longer; None where that was not
            measured, and 0 is assumed.
    """

    network: str
    setting: str
    step_ms: float
    record: str
    bus_gbs: float | None = None
    left_ms: float | None = None


def rates(bench: pd.DataFrame, scaling: pd.DataFrame | None = None, dtype: str = "fp32") -> list[Rate]:
    """The rates of every network of `DATA_SETS` under every setting that was measured.

    Args:
        bench: schema `BENCH`, of one machine.
        scaling: schema `SCALING`, of the same, where there is one: its steps come before the bench's.
        dtype: in which gradients are sent.
    """
    found = []
    for network in dict.fromkeys(data.network for data in DATA_SETS):
        steps = rows_of(bench, network, "step")["median_ms"]
        for setting in ("BASE", "OPT1", "FAST"):
            known = _scaled(scaling, network, setting, dtype)
            if "step_ms" in known:
                found.append(Rate(network, setting, record="scaling", **known))
            elif setting in steps:
                found.append(Rate(network, setting, float(steps[setting]), "bench", **known))
    return found


def _scaled(scaling: pd.DataFrame | None, network: str, setting: str, dtype: str) -> dict[str, float]:
    """Returns what the record of scaling tells of a `Rate`: fields that it does not tell are missing."""
    if scaling is None:
        return {}
    own = scaling[
        (scaling["network"] == network)
        & (scaling["size"] == NETWORKS[network].size(NETWORKS[network].side))
        & (scaling["channels"] == 64)
        & (scaling["weights"] == "replicated")
    ]
    found: dict[str, float] = {}
    steps = as_trained(own[(own["setting"] == setting) & (own["measure"] == "step") & (own["micro_steps"] == 1)])
    if len(alone := steps[steps["gpus"] == 1]):
        found["step_ms"] = float(alone["median_ms"].iloc[0])
    sums = scaling[(scaling["measure"] == "all-reduce") & (scaling["gradient_dtype"] == dtype)]
    if len(sums):
        alike = sums[sums["network"] == network]  # the speed depends little on the network, and on no setting
        last = (alike if len(alike) else sums).sort_values("gpus", kind="stable").iloc[-1]
        found["bus_gbs"] = float(_ring(last["gpus"]) * last["sent_mib"] * 2**20 / 1e6 / last["median_ms"])
    together = steps[(steps["gpus"] > 1) & (steps["gradient_dtype"] == dtype)].sort_values("gpus")
    if "step_ms" in found and len(together):
        found["left_ms"] = max(0.0, float(together["median_ms"].iloc[-1]) - found["step_ms"])
    return found


@functools.cache
def weights(network: str, channels: int = 64) -> int:
    """The numbers that a network of `study.bench.networks` learns, at its own size and a base width."""
    own = NETWORKS[network]
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in own.build(own.side, channels).parameters())


@functools.cache
def filled(network: str, dtype: str = "fp32") -> float:
    """The share of a backward pass's work, in multiplications, that is done when the first bucket of gradients is full.

    Counted from shapes, at the network's own size. It is large: the last layers come first, whose volumes are the
    largest and whose weights are the fewest.
    """
    own = NETWORKS[network]
    model, problem = planned(own, own.side, 64), Problem(own, own.side, 1, torch.device("meta"))
    first = gradient_sum(list(model.parameters()), TrainConfig(gradient_dtype=dtype)).buckets[0]
    with FlopCounterMode(display=False) as counter:
        loss, _ = problem.loss(model, *problem.inputs)
        forward = counter.get_total_flops()
        done: list[int] = []
        for parameter in first.parameters:
            parameter.register_post_accumulate_grad_hook(lambda _: done.append(counter.get_total_flops() - forward))
        loss.backward()
    return done[-1] / (counter.get_total_flops() - forward)


def hidden_ms(rate: Rate, dtype: str = "fp32") -> float:
    """The time in which sums go on beside the backward pass: from its first full bucket to its end.

    The last bucket is full only at that end. It is small, and its sum is left to what was measured.
    """
    return BACKWARD * rate.step_ms * (1 - filled(rate.network, dtype))


def communication_ms(rate: Rate, gpus: int, cluster: Cluster, dtype: str = "fp32") -> float:
    """The time in which all GPUs sum a step's gradients, if nothing hides it.

    Each GPU sends and receives 2 (N - 1) / N times the gradients. Between machines the network's speed or that of a
    machine's GPUs holds, whichever is less; every bucket then climbs a tree of machines and comes down again.
    """
    if gpus == 1:
        return 0.0
    nodes = math.ceil(gpus / cluster.gpus_a_node)
    sent = BYTES[dtype] * weights(rate.network)
    between = cluster.node_gbs if nodes > 1 or rate.bus_gbs is None else math.inf
    speed = min(between, rate.bus_gbs or math.inf)
    hops = 2 * math.log2(nodes) * math.ceil(sent / (TrainConfig.bucket_mib * 2**20))
    return _ring(gpus) * sent / 1e6 / speed + hops * cluster.hop_us / 1e3


def estimate(
    data: DataSet, rate: Rate, gpus: int, cluster: Cluster | None = None, dtype: str = "fp32"
) -> dict[str, Any]:
    """A training on so many GPUs, each with one volume a step.

    A step takes as long as computing, and what of the communication the backward pass does not hide once a bucket is
    full, but at least what was measured; or as long as its volumes take to come, where no memory holds them all.

    Returns:
        data, setting, gpus; step_ms; limited_by: "computing", "communication" or "loading"; hours; gpu_hours; read_gbs,
        the volumes' bytes a second; dollars.
    """
    cluster = cluster or Cluster()
    sent = communication_ms(rate, gpus, cluster, dtype)
    hidden = hidden_ms(rate, dtype)
    left = (rate.left_ms or 0.0) if gpus > 1 else 0.0
    shown = max(sent - hidden, left)
    loading = 0.0 if kept(data, cluster) != "storage" else gpus * data.volume_mb / cluster.storage_gbs
    step_ms = max(rate.step_ms + shown, loading)
    limit = "loading" if loading == step_ms else "communication" if sent > hidden else "computing"
    hours = data.volumes * data.epochs / gpus * step_ms / HOUR
    return {
        "data": data.name,
        "setting": rate.setting,
        "gpus": gpus,
        "step_ms": step_ms,
        "limited_by": limit,
        "hours": hours,
        "gpu_hours": gpus * hours,
        "read_gbs": gpus * data.volume_mb / step_ms,
        "dollars": gpus * hours * cluster.dollars,
    }


def table(
    found: Iterable[Rate],
    data_sets: Sequence[DataSet] = DATA_SETS,
    counts: Sequence[int] = COUNTS,
    cluster: Cluster | None = None,
    dtype: str = "fp32",
) -> pd.DataFrame:
    """Every training on every number of GPUs that has at least a volume for each; columns as `estimate` has them."""
    found = list(found)
    return pd.DataFrame(
        estimate(data, rate, gpus, cluster, dtype)
        for data in data_sets
        for rate in found
        if rate.network == data.network
        for gpus in counts
        if gpus <= data.volumes
    )


def kept(data: DataSet, cluster: Cluster) -> str:
    """Where all prepared volumes stay after the first epoch: in each "GPU", in each "host", or on the "storage"."""
    whole = data.volumes * data.volume_mb / 1e3
    return "GPU" if whole <= cluster.gpu_gb / 2 else "host" if whole <= cluster.host_gb / 2 else "storage"


def limits(found: Iterable[Rate], cluster: Cluster | None = None) -> pd.DataFrame:
    """Where loading and where communication begin to set the pace, if every volume is read at every epoch.

    Args:
        found: rates.
        cluster: assumptions.

    Returns:
        network, setting; gpu_gbs, what one GPU reads in GB/s; loading, the GPUs from which the file system is too slow;
        and for each dtype the network that a machine needs for the backward pass to hide the sum on 1024 GPUs, in GB/s,
        latency and the last bucket left aside.
    """
    cluster, rows = cluster or Cluster(), []
    for rate in found:
        volume = next(data.volume_mb for data in DATA_SETS if data.network == rate.network)
        needs = {
            f"network_{dtype}": _ring(COUNTS[-1]) * size * weights(rate.network) / 1e6 / hidden_ms(rate, dtype)
            for dtype, size in BYTES.items()
        }
        rows.append(
            {
                "network": rate.network,
                "setting": rate.setting,
                "gpu_gbs": volume / rate.step_ms,
                "loading": math.ceil(cluster.storage_gbs * rate.step_ms / volume),
                **needs,
            }
        )
    return pd.DataFrame(rows)


def _ring(gpus: int) -> float:
    """Returns what each of so many GPUs sends in a sum, divided by what is summed."""
    return 2 * (gpus - 1) / gpus
