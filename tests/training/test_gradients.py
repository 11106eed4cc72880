"""The gradients of several processes are those of one on all their volumes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from helpers.ranks import run_ranks

from medddpm.data.phantom import Phantom
from medddpm.runtime.ranks import Ranks
from medddpm.training.config import TrainConfig
from medddpm.training.gradients import GradientSum
from medddpm.training.run import train
from medddpm.training.trainer import Trainer

COMPARED = """
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from medddpm.runtime.ranks import joined
from medddpm.training.gradients import GradientSum

class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv3d(2, 8, 3, padding=1), nn.Conv3d(8, 3, 3, padding=1)
        self.unused = nn.Parameter(torch.ones(5))
        self.rarely = nn.Parameter(torch.ones(3, 1, 1, 1))

    def forward(self, x, rarely):
        y = self.second(self.first(x).tanh())
        return y * self.rarely if rarely else y

def gradients(model):
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]

with joined(torch.device("cpu")):
    rank, world = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(0)
    model, x = Network(), torch.randn(2 * world, 2, 6, 6, 6)
    model.first.weight.data = model.first.weight.data.contiguous(memory_format=torch.channels_last_3d)
    ours = x[2 * rank : 2 * rank + 2]
    (model(x, False)[: 2 * world - 2].sum() + model(x, True)[-2:].sum()).div(2 * world).backward()
    expected = gradients(model)
    for dtype, bucket in ((None, 1), (None, 0), (None, 2**20), (torch.bfloat16, 800)):
        total = GradientSum(list(model.parameters()), dtype, bucket)
        assert len(total.buckets) == {1: 6, 0: 1, 2**20: 1, 800: 3}[bucket], len(total.buckets)
        for again in range(2):
            model.zero_grad()
            for micro in range(2):  # one volume each, of which the last process alone uses `rarely`
                def work():
                    (model(ours[micro : micro + 1], rank == world - 1).sum() / (2 * world)).backward()
                if micro == 1:
                    with total.of_pass():
                        work()
                else:
                    work()
            found = gradients(model)
            exact = dtype is None
            for f, e in zip(found, expected, strict=True):
                torch.testing.assert_close(f, e, rtol=1e-5 if exact else 0.02, atol=1e-5 if exact else 0.02)
            alike = [torch.empty_like(f) for f in found]
            for a, f in zip(alike, found, strict=True):
                a.copy_(f)
                distributed.broadcast(a, 0)
                assert torch.equal(a, f), "the same bits on every process"
            if not exact:
                assert any(not torch.allclose(f, e, rtol=1e-5, atol=1e-6) for f, e in zip(found, expected))
        assert total.stopwatch.ms() > 0
        total.close()
    model.zero_grad()
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    wrapped(ours, rank == world - 1).sum().div(2).backward()
    for f, e in zip(gradients(model), expected, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-5, atol=1e-5)
    print("equal")
"""


@pytest.mark.parametrize("count", [2, 4])
def test_they_are_those_of_one_process_on_the_joined_batch(count: int) -> None:
    """In FP32 and BF16, one bucket or many, with parameters that some or all processes leave out; as PyTorch's DDP."""
    for ended in run_ranks(count, COMPARED):
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout == "equal\n"


def test_buckets_follow_the_backward_pass_and_one_dtype_each() -> None:
    parameters = [torch.nn.Parameter(torch.ones(n, dtype=d)) for n, d in ((4, torch.float32), (2, torch.float64))]
    parameters += [torch.nn.Parameter(torch.ones(n)) for n in (8, 8, 1)]
    frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    buckets = GradientSum([*parameters, frozen], bucket_bytes=32).buckets
    sizes = [[p.numel() for p in bucket.parameters] for bucket in buckets]
    assert sizes == [[1, 8], [8], [2], [4]]
    assert [bucket.flat.dtype for bucket in buckets] == [torch.float32, torch.float32, torch.float64, torch.float32]
    starts = [view.storage_offset() * view.itemsize for bucket in buckets for view in bucket.views]
    assert starts == [0, 128, 0, 0, 0], "whole lines, which kernels over many tensors read 16 bytes at a time"


class Pretended(Ranks):
    """One of several processes, of which the others are not there."""

    def __init__(self, rank: int, world: int) -> None:
        super().__init__()
        self.rank, self.world = rank, world


@pytest.mark.parametrize("world", [2, 4])
def test_shards_are_disjoint_and_cover_and_seeds_are_one_processs(world: int) -> None:
    """Whatever number of processes shares the 4 micro-steps of a step, together they draw what one process draws."""
    config = TrainConfig(image_size=8, model_channels=32, channel_mult=(1, 2), batch_size=2, accumulation=4)
    volumes = Phantom(24, (8, 8, 8))

    def sampled(rank: int, world: int) -> tuple[list[list[int]], list[int]]:
        shared = replace(config, accumulation=4 // world)
        trainer = Trainer(shared, volumes, torch.device("cpu"), ranks=Pretended(rank, world))
        order, indices, seeds = trainer._order(), [], []
        for trainer.step in range(3):  # an epoch
            indices += [next(order) for _ in range(shared.accumulation)]
            seeds += [trainer._seed(micro) for micro in range(shared.accumulation)]
        return indices, seeds

    whole, seeds = sampled(0, 1)
    parts = [sampled(rank, world) for rank in range(world)]
    assert sorted(i for indices in whole for i in indices) == list(range(24))
    assert sorted(i for indices, _ in parts for batch in indices for i in batch) == list(range(24))
    assert sorted(map(tuple, whole)) == sorted(tuple(batch) for indices, _ in parts for batch in indices)
    assert len(set(seeds)) == 12
    assert sorted(seeds) == sorted(seed for _, shard in parts for seed in shard)


def test_volumes_are_drawn_by_all_processes_and_are_the_same(head_folder: Path, tmp_path: Path) -> None:
    config = TrainConfig(image_size=8, model_channels=32, channel_mult=(1, 2), accumulation=1, sample_every=0)
    train(config, Phantom(1, (8, 8, 8)), tmp_path / "run", 1, device="cpu", progress=False)
    mask = min((head_folder / "mask").iterdir())
    script = "import sys; from medddpm.cli.main import main; sys.exit(main(sys.argv[1:]))"
    samples: dict[int, dict[str, np.ndarray]] = {}
    for processes in (1, 2):
        out = tmp_path / str(processes)
        words = ["sample", "--checkpoint", tmp_path / "run", "--mask", mask, "--out", out / "v.nii", "--count", 5]
        words += ["--batch", 2, "--sampler", "ddim", "--steps", 2, "--device", "cpu", "-q"]
        done = run_ranks(processes, script, *words)
        assert [ended.returncode for ended in done] == [0] * processes, [ended.stderr for ended in done]
        printed = [ended.stdout.split() for ended in done]
        assert len(printed[0]) == {1: 5, 2: 3}[processes]
        samples[processes] = {path.name: nibabel.load(path).get_fdata() for path in out.iterdir()}
    assert len(samples[1]) == 5
    assert samples[1].keys() == samples[2].keys()
    assert all(np.array_equal(samples[1][name], samples[2][name]) for name in samples[1])
