"""Estimates on paper: the arithmetic, by hand; what sets the pace; what a record changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers.repository import ROOT
from helpers.scaling_records import record
from torch import nn

from medddpm.data.disk_cache import DiskCache
from medddpm.data.layouts import BRATS, HEAD
from medddpm.data.phantom import Phantom
from study.bench import tables as bench
from study.bench.networks import NETWORKS, Problem, planned
from study.scaling import estimates
from study.scaling.estimates import Cluster, DataSet, Rate, communication_ms, estimate

SMALL = DataSet("small", "med-ddpm", 1000, 10)
LARGE = DataSet("large", "med-ddpm", 10**6, 1)
FAST = Rate("med-ddpm", "FAST", 40.0, "bench")


def test_on_one_gpu_it_is_the_measured_rate() -> None:
    found = estimate(SMALL, FAST, 1)
    assert found["hours"] == pytest.approx(10_000 * 0.04 / 3600)
    assert found["gpu_hours"] == found["hours"]
    assert found["dollars"] == pytest.approx(3 * found["hours"])
    assert found["read_gbs"] == pytest.approx(SMALL.volume_mb / 40)
    assert found["limited_by"] == "computing"


def test_a_prepared_volume_has_the_bytes_of_the_disk_cache(tmp_path) -> None:
    """Beside the file's head, with names and digests."""
    cache = DiskCache(Phantom(1, (16, 16, 16), cache_gib=0), tmp_path)
    cache.prepare(processes=1)
    (path,) = tmp_path.glob("*/*.safetensors")
    voxel = SMALL.volume_mb * 1e6 / 128**3
    assert 0 < path.stat().st_size - 16**3 * voxel < 1000
    assert voxel == 4 * HEAD.image_channels + HEAD.mask_channels
    brats = DataSet("", "med-ddpm-brats", 1, 1).volume_mb * 1e6 / (192 * 192 * 144)
    assert brats == 4 * BRATS.image_channels + BRATS.mask_channels == 20


def test_the_sum_is_of_the_networks_own_weights() -> None:
    own = NETWORKS["med-ddpm"]
    with torch.device("meta"):
        assert estimates.weights("med-ddpm") == sum(p.numel() for p in own.build(own.side, 64).parameters())
    megabytes = 4 * estimates.weights("med-ddpm") / 1e6
    slow = Cluster(node_gbs=10.0, hop_us=0.0)
    assert communication_ms(FAST, 1, slow) == 0
    assert communication_ms(FAST, 16, slow) == pytest.approx(2 * 15 / 16 * megabytes / 10)
    assert communication_ms(FAST, 16, slow, "bf16") == pytest.approx(15 / 16 * megabytes / 10)
    joined = Rate("med-ddpm", "FAST", 40.0, "scaling", bus_gbs=100.0)
    assert communication_ms(joined, 8, slow) == pytest.approx(2 * 7 / 8 * megabytes / 100), "within a machine"
    assert communication_ms(joined, 16, slow) == pytest.approx(2 * 15 / 16 * megabytes / 10), "between machines"
    assert communication_ms(joined, 16, Cluster(hop_us=0.0)) == pytest.approx(2 * 15 / 16 * megabytes / 100)
    wait = communication_ms(FAST, 64, Cluster(hop_us=100.0)) - communication_ms(FAST, 64, Cluster(hop_us=0.0))
    assert wait == pytest.approx(2 * 3 * 5 * 0.1), "eight machines are three hops up and down, for each of 5 buckets"


@pytest.mark.parametrize(
    ("cluster", "gpus", "limited_by"),
    [
        (Cluster(storage_gbs=1e9), 1024, "computing"),
        (Cluster(storage_gbs=1.0), 4, "loading"),
        (Cluster(storage_gbs=1.0), 3, "computing"),
        (Cluster(storage_gbs=1e9, node_gbs=1.0), 16, "communication"),
        (Cluster(storage_gbs=1e9, node_gbs=1.0), 1, "computing"),
    ],
)
def test_what_is_slowest_sets_the_pace(cluster: Cluster, gpus: int, limited_by: str) -> None:
    found = estimate(LARGE, FAST, gpus, cluster)
    assert found["limited_by"] == limited_by
    assert (found["step_ms"] > 40) == (limited_by != "computing")
    if limited_by == "loading":
        assert found["read_gbs"] == pytest.approx(cluster.storage_gbs)
    if limited_by == "communication":
        hidden = 2 / 3 * 40 * (1 - estimates.filled("med-ddpm"))
        assert found["step_ms"] == pytest.approx(40 - hidden + communication_ms(FAST, gpus, cluster))


@pytest.mark.parametrize(
    ("network", "dtype", "share"),
    [
        ("med-ddpm", "fp32", 0.77),
        ("med-ddpm", "bf16", 0.78),
        ("med-ddpm-brats", "fp32", 0.71),
        ("med-ddpm-brats", "bf16", 0.72),
    ],
)
def test_sums_are_hidden_only_once_a_bucket_is_full(network: str, dtype: str, share: float) -> None:
    """Held against a count by layers: a weight's numbers times the voxels of what its layer gives, last layer first."""
    own, work = NETWORKS[network], dict[int, int]()
    model, problem = planned(own, own.side, 64), Problem(own, own.side, 1, torch.device("meta"))

    def count(layer: nn.Module, _: object, y: torch.Tensor) -> None:
        work[id(layer.weight)] = layer.weight.numel() * y.numel() // len(layer.weight)

    for layer in model.modules():
        if isinstance(layer, (nn.Conv1d, nn.Conv3d, nn.Linear)):
            layer.register_forward_hook(count)
    model(*problem.forward_inputs())
    done = size = 0
    for parameter in reversed(list(model.parameters())):
        if size >= 2**25:
            break
        size += parameter.numel() * {"fp32": 4, "bf16": 2}[dtype]
        done += work.get(id(parameter), 0)
    found = estimates.filled(network, dtype)
    assert found == pytest.approx(done / sum(work.values()), abs=0.005)
    assert found == pytest.approx(share, abs=0.005)
    rate = Rate(network, "FAST", 30.0, "bench")
    assert estimates.hidden_ms(rate, dtype) == pytest.approx(20 * (1 - found))


def test_what_fits_into_memory_is_read_once() -> None:
    cluster = Cluster(storage_gbs=0.001)
    assert [estimates.cache_place(data, cluster) for data in (SMALL, LARGE)] == ["GPU", "storage"]
    assert estimates.cache_place(DataSet("", "med-ddpm", 50_000, 1), cluster) == "host"
    assert estimate(SMALL, FAST, 64, cluster)["limited_by"] == "computing"


def test_a_record_of_scaling_comes_before_the_benchs() -> None:
    own = bench.recorded(ROOT)["H200"]
    plain = {(rate.network, rate.setting): rate for rate in estimates.rates(own)}
    assert plain["med-ddpm", "FAST"].record == "bench"
    assert plain["med-ddpm", "FAST"].bus_gbs is None
    steps = record(**{"step_1_1_none": 40, "step_2_1_fp32": 42, "step_2_1_bf16": 41, "all-reduce_2_1_fp32": 0.004})
    found = {(rate.network, rate.setting): rate for rate in estimates.rates(own, steps)}
    fast = found["med-ddpm", "FAST"]
    assert (fast.record, fast.step_ms, fast.left_ms) == ("scaling", 40, pytest.approx(2))
    assert fast.bus_gbs == pytest.approx(2**20 / 1e6 / 0.004), "1 MiB in 4 µs"
    assert (found["med-ddpm", "BASE"].record, found["med-ddpm", "BASE"].left_ms) == ("bench", None)
    assert found["med-ddpm", "BASE"].bus_gbs == fast.bus_gbs
    assert found["med-ddpm-brats", "FAST"] == replace(plain["med-ddpm-brats", "FAST"], bus_gbs=fast.bus_gbs)
    assert estimate(SMALL, fast, 2)["step_ms"] == pytest.approx(42)


def test_a_gpu_has_at_least_a_volume() -> None:
    found = estimates.table([FAST], [DataSet("few", "med-ddpm", 100, 1)])
    assert found["gpus"].tolist() == [1, 2, 4, 8, 16, 32, 64]
    assert found["gpu_hours"].is_monotonic_increasing


def test_limits_agree_with_the_estimates() -> None:
    cluster = Cluster(storage_gbs=1.0, hop_us=0.0)
    (row,) = estimates.limits([FAST], cluster).to_dict("records")
    first = row["loading"]
    pace = [estimate(LARGE, FAST, gpus, cluster)["limited_by"] for gpus in (first - 1, first + 1)]
    assert pace == ["computing", "loading"]
    for dtype in ("fp32", "bf16"):
        for factor, limit in ((1.01, "computing"), (0.99, "communication")):
            enough = Cluster(storage_gbs=1e9, hop_us=0.0, node_gbs=factor * row[f"network_{dtype}"])
            assert estimate(LARGE, FAST, 1024, enough, dtype)["limited_by"] == limit
