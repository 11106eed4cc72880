"""Estimates large trainings from measured rates of one GPU and of one machine, and stated assumptions."""

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
from medddpm.errors import BadInput
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
    """The assumptions of an estimate, which no record can give.

    Args:
        gpus_a_node: GPUs of a machine.
        node_gbs: rate at which a machine sends and receives over the network, in GB/s. Eight adapters of 400 Gb/s, as
            in MLPerf's descriptions of machines with eight H200s, are 400.
        hop_us: latency of a message between two machines.
        storage_gbs: rate of the file system for all machines together, in GB/s.
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
        layout, network = BRATS if "brats" in self.network else HEAD, NETWORKS[self.network]
        voxels = math.prod(network.sides(network.side))
        return voxels * (4 * layout.image_channels + layout.mask_channels) / 1e6


DATA_SETS = (
    DataSet("193 BraTS subjects", "med-ddpm-brats", 193, 518),
    DataSet("10 000 volumes of 128³", "med-ddpm", 10_000, 100),
    DataSet("1 000 000 volumes of 128³", "med-ddpm", 1_000_000, 10),
)
"""The first one's epochs make 50 000 steps of two volumes, as Med-DDPM's authors train."""


@dataclass(frozen=True)
class Rate:
    """A network under a setting, as measured on one machine.

    Args:
        network, setting: their names.
        step_ms: one GPU's step of one volume.
        record: the table it is from.
        bus_gbs: the speed at which GPUs of a machine sum, in GB/s that each sends and receives; None if it was not
            measured.
        left_ms: the additional time of a step on the largest measured number of GPUs; None if it was not measured, and
            0 is assumed.
    """

    network: str
    setting: str
    step_ms: float
    record: str
    bus_gbs: float | None = None
    left_ms: float | None = None


def rates(bench: pd.DataFrame, scaling: pd.DataFrame | None = None, dtype: str = "fp32") -> list[Rate]:
    """Returns the rates of every network of `DATA_SETS` under every setting that was measured.

    Args:
        bench: schema `BENCH`, of one machine.
        scaling: schema `SCALING`, of the same machine, if there is one: its steps come before the bench's.
        dtype: in which gradients are sent, one of `BYTES`.

    Raises:
        BadInput: gradients are sent in no such type.
    """
    if dtype not in BYTES:
        raise BadInput(
            f"gradient_dtype = {dtype!r}", "gradients are sent in no such type", f"give {' or '.join(BYTES)}"
        )
    measured = []
    for network in dict.fromkeys(data.network for data in DATA_SETS):
        steps = rows_of(bench, network, "step")["median_ms"]
        for setting in ("BASE", "OPT1", "FAST"):
            known = _scaled(scaling, network, setting, dtype)
            if "step_ms" in known:
                measured.append(Rate(network, setting, record="scaling", **known))
            elif setting in steps:
                measured.append(Rate(network, setting, float(steps[setting]), "bench", **known))
    return measured


def _scaled(scaling: pd.DataFrame | None, network: str, setting: str, dtype: str) -> dict[str, float]:
    """Returns the fields of a `Rate` that the record of scaling has."""
    if scaling is None:
        return {}
    rows = scaling[
        (scaling["network"] == network)
        & (scaling["size"] == NETWORKS[network].size(NETWORKS[network].side))
        & (scaling["channels"] == 64)
        & (scaling["weights"] == "replicated")
    ]
    fields: dict[str, float] = {}
    steps = as_trained(rows[(rows["setting"] == setting) & (rows["measure"] == "step") & (rows["micro_steps"] == 1)])
    if len(alone := steps[steps["gpus"] == 1]):
        fields["step_ms"] = float(alone["median_ms"].iloc[0])
    sums = scaling[(scaling["measure"] == "all-reduce") & (scaling["gradient_dtype"] == dtype)]
    if len(sums):
        alike = sums[sums["network"] == network]  # the speed depends little on the network, and on no setting
        last = (alike if len(alike) else sums).sort_values("gpus", kind="stable").iloc[-1]
        fields["bus_gbs"] = float(_ring(last["gpus"]) * last["sent_mib"] * 2**20 / 1e6 / last["median_ms"])
    together = steps[(steps["gpus"] > 1) & (steps["gradient_dtype"] == dtype)].sort_values("gpus")
    if "step_ms" in fields and len(together):
        fields["left_ms"] = max(0.0, float(together["median_ms"].iloc[-1]) - fields["step_ms"])
    return fields


@functools.cache
def weights(network: str, channels: int = 64) -> int:
    """Counts the weights of a network of `study.bench.networks`, at its own size and a base width."""
    entry = NETWORKS[network]
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in entry.build(entry.side, channels).parameters())


@functools.cache
def filled(network: str, dtype: str = "fp32") -> float:
    """Returns the share of a backward pass's multiplications that is done when the first bucket of gradients is full.

    Counted from shapes, at the network's own size. It is large: the last layers come first, whose volumes are the
    largest and whose weights are the fewest.
    """
    entry = NETWORKS[network]
    model, problem = (
        planned(entry, entry.side, 64),
        Problem(entry, entry.side, 1, torch.device("meta")),
    )
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
    """Returns the time in which sums go on beside the backward pass: from its first full bucket to its end.

    The last bucket is full only at that end. It is small, and its sum is part of the measured `Rate.left_ms`.
    """
    return BACKWARD * rate.step_ms * (1 - filled(rate.network, dtype))


def communication_ms(rate: Rate, gpus: int, cluster: Cluster, dtype: str = "fp32") -> float:
    """Estimates the time in which all GPUs sum a step's gradients, if nothing hides it.

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
    """Estimates a training on some number of GPUs, each with one volume a step.

    A step takes the time of computing, plus the communication that the backward pass does not hide once a bucket is
    full, or the measured `Rate.left_ms` if that is longer. If no memory holds all volumes, it takes at least the time
    of loading its volumes.

    Returns:
        data, setting, gpus; step_ms; limited_by: "computing", "communication" or "loading"; hours; gpu_hours; read_gbs,
        the volumes' bytes a second; dollars.
    """
    cluster = cluster or Cluster()
    sent = communication_ms(rate, gpus, cluster, dtype)
    hidden = hidden_ms(rate, dtype)
    left = (rate.left_ms or 0.0) if gpus > 1 else 0.0
    shown = max(sent - hidden, left)
    loading = 0.0 if cache_place(data, cluster) != "storage" else gpus * data.volume_mb / cluster.storage_gbs
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
    measured_rates: Iterable[Rate],
    data_sets: Sequence[DataSet] = DATA_SETS,
    counts: Sequence[int] = COUNTS,
    cluster: Cluster | None = None,
    dtype: str = "fp32",
) -> pd.DataFrame:
    """Estimates every training on each number of GPUs up to its number of volumes; columns as `estimate` has them."""
    measured_rates = list(measured_rates)
    return pd.DataFrame(
        estimate(data, rate, gpus, cluster, dtype)
        for data in data_sets
        for rate in measured_rates
        if rate.network == data.network
        for gpus in counts
        if gpus <= data.volumes
    )


def cache_place(data: DataSet, cluster: Cluster) -> str:
    """Names the place of all prepared volumes after the first epoch: each "GPU", each "host", or the "storage"."""
    whole = data.volumes * data.volume_mb / 1e3
    return "GPU" if whole <= cluster.gpu_gb / 2 else "host" if whole <= cluster.host_gb / 2 else "storage"


def limits(measured_rates: Iterable[Rate], cluster: Cluster | None = None) -> pd.DataFrame:
    """Estimates the points at which loading and communication set the pace, if every epoch reads every volume.

    Args:
        measured_rates: as `rates` returns them.
        cluster: assumptions.

    Returns:
        network, setting; gpu_gbs, the rate at which one GPU reads, GB/s; loading, the number of GPUs from which the
        file system is too slow; and for each dtype the network that a machine needs for the backward pass to hide the
        sum on 1024 GPUs, in GB/s, latency and the last bucket left aside.
    """
    cluster, rows = cluster or Cluster(), []
    for rate in measured_rates:
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
    """Returns the bytes that each of `gpus` GPUs sends in a ring's sum, divided by the bytes summed."""
    return 2 * (gpus - 1) / gpus
