"""The process of the scaling bench, one on each GPU: times training steps with the others and without them.

torchrun starts it. Volumes are random and lie on the device, so that only computing and communication are timed. The
first process writes FOLDER/KEY.json for each row as soon as it is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import math
import os
import statistics
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import nibabel
import torch
from torch import Tensor, distributed

from medddpm.data.grid import Size
from medddpm.data.layouts import BRATS, HEAD, Layout
from medddpm.errors import BadInput, first_line
from medddpm.fast.graphs import cuda_graphs
from medddpm.measure.machine import now
from medddpm.measure.timing import SETTLING, timed, warm_up
from medddpm.runtime.exits import end
from medddpm.runtime.files import write_json
from medddpm.runtime.processes import end_with_parent, peak, pick_device, reset_peak
from medddpm.runtime.ranks import Ranks, joined, peers
from medddpm.switches import SETTINGS
from medddpm.training.config import TrainConfig
from medddpm.training.gradients import gradient_sum
from medddpm.training.trainer import Trainer
from study.bench.networks import NETWORKS as BENCHED
from study.scaling.cases import NETWORKS, Case, case
from study.scaling.sharded import ShardedTrainer

SAMPLER, SAMPLER_STEPS = "ddim", 25
LEAST, SECONDS = 5, 2.0  # samples of a row, and about how long they may take beyond those
FAILED = "scaling: "  # begins the line by which a process says why it failed


class RandomVolumes:
    """Two random volumes in a layout and size (H, W, D); as `medddpm.data.volumes.Volumes`."""

    def __init__(self, layout: Layout, size: Size) -> None:
        self.layout, self.size = layout, size
        shape = (2, layout.image_channels + layout.mask_channels, *reversed(size))
        values = torch.rand(shape, generator=torch.Generator().manual_seed(0))
        self._images, self._masks = values.split([layout.image_channels, layout.mask_channels], dim=1)

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._images[index] * 2 - 1, (self._masks[index] > 0.5).float()

    def names(self) -> list[str]:
        """Returns the volumes' numbers."""
        return ["0", "1"]

    def digests(self) -> list[str]:
        """Returns the volumes' names, as their content never changes."""
        return self.names()

    def reference(self, index: int) -> nibabel.Nifti1Image:
        """Returns the mask of a volume, in voxels of 1 mm, as the volumes have no files."""
        labels = (self._masks[index, 0] > 0.5).permute(2, 1, 0).to(torch.uint8)
        return nibabel.Nifti1Image(labels.numpy(), torch.eye(4).numpy())


class Bench:
    """Times one network under one setting on this process's device, alone and with the others.

    Args:
        network: out of `study.scaling.cases.NETWORKS`.
        setting: a name in `medddpm.switches.SETTINGS`.
        side: of a volume, in voxels.
        channels: base width.
        device: this process's.
        samples: how often a row is timed at most.
    """

    def __init__(
        self, network: str, setting: str, side: int, channels: int, device: torch.device, samples: int
    ) -> None:
        depth, height, width = BENCHED[network].sides(side)
        self.device, self.samples, self.ranks = device, samples, Ranks()
        brats = network == "med-ddpm-brats"
        self.volumes = RandomVolumes(BRATS if brats else HEAD, (height, width, depth))
        self.config = TrainConfig(
            setting=setting, image_size=side, model_channels=channels, num_res_blocks=2 if brats else 1
        )
        self._alone: dict[int, float] = {}  # median by micro-steps

    def measure(self, row: Case) -> dict[str, Any]:
        """Measures a row of this network and setting; every process calls this with the same row.

        Returns:
            ms: of each sample, of the slowest process; alone_ms, sent_bytes and peak_bytes, as in schema `SCALING`.
        """
        dtype = row.gradient_dtype
        if row.measure == "sample":
            return self._sample()
        if row.measure == "all-reduce":
            return self._all_reduce(dtype)
        if row.weights == "sharded":
            return self._step(row.micro_steps, dtype, sharded=True)
        if row.micro_steps not in self._alone:
            result = self._step(row.micro_steps, None)
            self._alone[row.micro_steps] = statistics.median(result["ms"])
        if self.ranks.world > 1:
            result = self._step(row.micro_steps, dtype, row.bucket_mib)
        return {**result, "alone_ms": self._alone[row.micro_steps]}

    def _step(
        self, micro_steps: int, dtype: str | None, bucket_mib: int | None = None, sharded: bool = False
    ) -> dict[str, Any]:
        """Measures a training step; without a dtype each process has its own, all at once."""
        with contextlib.closing(self._trainer(micro_steps, dtype, bucket_mib, sharded)) as trainer:

            def step() -> Tensor:
                trainer.train_step()
                return trainer._pending.pop()

            return {**self._timed(step, trainer), "sent_bytes": _bytes(trainer, dtype)}

    def _all_reduce(self, dtype: str | None) -> dict[str, Any]:
        """Measures the sum of a step's buckets of gradients, while nothing is computed."""
        with (
            contextlib.closing(self._trainer(1, dtype)) as trainer,
            contextlib.closing(gradient_sum(list(trainer.unet.parameters()), trainer.config)) as gradients,
        ):
            sent = [bucket.flat for bucket in gradients.buckets]

            def work() -> Tensor:
                with peers():
                    for running in [distributed.all_reduce(flat, async_op=True) for flat in sent]:
                        running.wait()
                return sent[-1]

            return {**self._timed(work, trainer), "sent_bytes": _bytes(trainer, dtype)}

    def _sample(self) -> dict[str, Any]:
        """Measures the drawing of a volume, on every device at once."""
        with contextlib.closing(self._trainer(1, None)) as trainer:
            mask = self.volumes[0][1][None].to(self.device)
            generator = torch.Generator(self.device).manual_seed(self.ranks.rank)
            return self._timed(
                lambda: trainer.diffusion.sample(mask, SAMPLER_STEPS, SAMPLER, generator=generator), trainer
            )

    def _trainer(
        self, micro_steps: int, dtype: str | None, bucket_mib: int | None = None, sharded: bool = False
    ) -> Trainer:
        gc.collect()  # the last row's: a network and its hooks hold each other
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        reset_peak(self.device)
        bucket = TrainConfig.bucket_mib if bucket_mib is None else bucket_mib
        sums = {"gradient_dtype": dtype or "fp32", "bucket_mib": bucket}
        config = dataclasses.replace(self.config, accumulation=micro_steps, **sums)  # type: ignore[arg-type]
        if sharded:
            trainer: Trainer = ShardedTrainer(config, self.volumes, self.device)
        else:
            trainer = Trainer(config, self.volumes, self.device, ranks=Ranks(alone=dtype is None))
        trainer.keep_on_device()
        return trainer

    def _timed(self, work: Callable[[], Tensor], trainer: Trainer) -> dict[str, Any]:
        """Measures `work` under the setting, all processes beginning at once."""
        with SETTINGS[self.config.setting].on(trainer.unet):
            warm_up(work, self.device)
            once = timed(work, 1, self.device)[0][0]
            if self.device.type == "cuda":  # until its clocks have fallen, as in the bench; all processes as often
                timed(work, self.ranks.told(math.ceil(1e3 * SETTLING / once)), self.device)
            samples = self.ranks.told(min(self.samples, max(LEAST, int(1e3 * SECONDS / once))))
            times, _ = timed(work, samples, self.device)
            cuda_graphs.forget(trainer.unet)
        by_rank = self.ranks.gathered([*times, float(peak(self.device) or 0)])
        *slowest, most = (max(column) for column in zip(*by_rank, strict=True))
        return {"ms": slowest, "peak_bytes": most or None}


def _bytes(trainer: Trainer, dtype: str | None) -> int | None:
    """Returns the bytes that a process sums with the others in a step; None if it sums nothing."""
    if dtype is None:
        return None
    return sum(p.numel() * (2 if dtype == "bf16" else p.element_size()) for p in trainer.unet.parameters())


def main(argv: Sequence[str] | None = None) -> int:
    """Measures the rows that the arguments describe. A failure is one line on stderr that begins with `FAILED`."""
    arguments = parser().parse_args(argv)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        end_with_parent()
    try:
        device = pick_device(arguments.device)
        with joined(device):
            _rows(arguments, device)
    except BadInput as error:
        print(f"{FAILED}{error}", file=sys.stderr)
        return 1
    return 0


def _rows(arguments: argparse.Namespace, device: torch.device) -> None:
    ranks = Ranks()
    place = {name: getattr(arguments, name) for name in ("network", "setting", "side", "channels")}
    try:
        bench = Bench(**place, device=device, samples=arguments.samples)
        for word in arguments.rows:
            row = case(word, gpus=ranks.world, **place)
            result = bench.measure(row)
            result |= {"case": dataclasses.asdict(row), "date": now()}
            if ranks.lead:
                write_json(arguments.folder / f"{row.key}.json", result)
    except Exception as error:
        if ranks.world == 1 and isinstance(error, BadInput):
            raise
        if isinstance(error, BadInput | torch.OutOfMemoryError):
            problem = str(error) if isinstance(error, BadInput) else "out of memory"
        else:
            traceback.print_exc()
            problem = f"{type(error).__name__}: {first_line(error)}"
        print(f"{FAILED}{problem}", file=sys.stderr, flush=True)
        # The others wait in a collective, as would NCCL's end here. torchrun ends them once this process is gone.
        os._exit(1)


def parser() -> argparse.ArgumentParser:
    """Returns the program's arguments."""
    top = argparse.ArgumentParser(prog="python -m study.scaling.worker", description=__doc__)
    top.add_argument("--network", choices=NETWORKS, required=True)
    top.add_argument("--setting", choices=list(SETTINGS), required=True)
    top.add_argument("--side", type=int, required=True)
    top.add_argument("--channels", type=int, required=True)
    top.add_argument("--rows", nargs="+", required=True, metavar="WORD", help="each a `Case.word`, as step:2:fp32")
    top.add_argument("--samples", type=int, default=20)
    top.add_argument("--device", default="auto")
    top.add_argument("--folder", type=Path, required=True, help="of the results")
    return top


if __name__ == "__main__":
    end(main())
