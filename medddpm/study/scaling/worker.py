"""The process of the scaling bench, one on each GPU: times training steps with the others and without them.

Volumes are random and lie on the device, so that nothing is loaded: what is left is computing and communication.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nibabel
import torch
from torch import Tensor

from medddpm.data.grid import Size
from medddpm.data.layouts import BRATS, HEAD, Layout
from medddpm.errors import BadInput
from medddpm.runtime import cuda_graphs
from medddpm.runtime.files import replacing
from medddpm.runtime.processes import pick_device
from medddpm.runtime.ranks import Ranks, joined
from medddpm.study.bench.worker import reset_peak, timed, warm_up
from medddpm.switches import SETTINGS
from medddpm.training.config import TrainConfig
from medddpm.training.trainer import Trainer

NETWORKS: dict[str, tuple[Layout, Size, int]] = {
    "med-ddpm": (HEAD, (128,) * 3, 1),
    "brats": (BRATS, (192, 192, 144), 2),
}
"""Layout, size and residual blocks in a level, as published."""
SAMPLER, SAMPLER_STEPS = "ddim", 25


class RandomVolumes:
    """Two random volumes on a device, in a layout and size; as `medddpm.data.volumes.Volumes`."""

    def __init__(self, layout: Layout, size: Size, device: torch.device) -> None:
        self.layout, self.size = layout, size
        shape = (2, layout.image_channels + layout.mask_channels, *reversed(size))
        drawn = torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(device)
        self._images, self._masks = drawn.split([layout.image_channels, layout.mask_channels], dim=1)

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._images[index] * 2 - 1, (self._masks[index] > 0.5).float()

    def names(self) -> list[str]:
        """Their numbers."""
        return ["0", "1"]

    def digests(self) -> list[str]:
        """They never change."""
        return self.names()

    def reference(self, index: int) -> nibabel.Nifti1Image:
        """The mask of a volume, in voxels of 1 mm: they have no file of their own."""
        labels = (self._masks[index, 0] > 0.5).permute(2, 1, 0).to("cpu", torch.uint8)
        return nibabel.Nifti1Image(labels.numpy(), torch.eye(4).numpy())


class Bench:
    """Times one network on this process's device, alone and with the others.

    Args:
        network: a name in `NETWORKS`.
        size: (H, W, D); by default the network's own.
        channels: base width.
        device: this process's.
        samples: how often a step is timed.
    """

    def __init__(self, network: str, size: Size | None, channels: int, device: torch.device, samples: int) -> None:
        layout, own, blocks = NETWORKS[network]
        self.device, self.samples, self.ranks = device, samples, Ranks()
        self.volumes = RandomVolumes(layout, size or own, device)
        self.config = TrainConfig(
            image_size=self.volumes.size[0],
            model_channels=channels,
            num_res_blocks=blocks,
            channel_mult=None if size is None else (1, 2),
        )

    def step(self, setting: str, micro_steps: int, gradient_dtype: str = "fp32") -> dict[str, Any]:
        """Times the step with all processes, and what it takes each of them without the others."""
        alone = self._timed(setting, micro_steps, gradient_dtype, alone=True)
        found = self._timed(setting, micro_steps, gradient_dtype, alone=False) if self.ranks.world > 1 else alone
        return {
            "measure": "step",
            "setting": setting,
            "gradient_dtype": gradient_dtype,
            "micro_steps": micro_steps,
            **found,
            "alone_ms": statistics.median(alone["ms"]),
        }

    def sample(self, setting: str, steps: int = SAMPLER_STEPS) -> dict[str, Any]:
        """Times a volume, drawn on every device at once."""
        trainer = self._trainer(setting, 1, "fp32", alone=True)
        diffusion = trainer.diffusion
        mask = self.volumes[0][1][None]
        generator = torch.Generator(self.device).manual_seed(self.ranks.rank)
        with SETTINGS[setting].on(trainer.unet):
            draw = lambda: diffusion.sample(mask, steps, SAMPLER, generator=generator)  # noqa: E731
            warm_up(draw, self.device)
            reset_peak(self.device)
            self.ranks.agree()
            times, _ = timed(draw, min(self.samples, 3), self.device)
            cuda_graphs.forget(trainer.unet)
        found = self._together(times)
        return {"measure": "sample", "setting": setting, "gradient_dtype": None, "micro_steps": 1, **found,
                "alone_ms": statistics.median(found["ms"])}  # fmt: skip

    def gradient(self, setting: str, micro_steps: int, *, alone: bool, graph: bool = True) -> Tensor:
        """The gradient of the first step, all parameters' behind each other, on the host."""
        trainer = self._trainer(setting, micro_steps, "fp32", alone, graph)
        kept: list[Tensor] = []

        def note(*_: object) -> None:
            kept[:] = [p.grad.detach().flatten() for p in trainer.unet.parameters() if p.grad is not None]

        with contextlib.closing(trainer), SETTINGS[setting].on(trainer.unet):
            trainer.optimizer.register_step_pre_hook(note)
            trainer.train_step()
            return torch.cat([g.reshape(-1) for g in kept]).cpu()

    def _trainer(self, setting: str, micro_steps: int, gradient_dtype: str, alone: bool, graph: bool = True) -> Trainer:
        config = TrainConfig(
            **{**vars(self.config), "setting": setting, "accumulation": micro_steps, "gradient_dtype": gradient_dtype}
        )
        return Trainer(config, self.volumes, self.device, graph, Ranks(alone=alone))

    def _timed(self, setting: str, micro_steps: int, gradient_dtype: str, *, alone: bool) -> dict[str, Any]:
        reset_peak(self.device)
        trainer = self._trainer(setting, micro_steps, gradient_dtype, alone)

        def step() -> Tensor:
            trainer.train_step()
            return trainer._pending.pop()

        with contextlib.closing(trainer), SETTINGS[setting].on(trainer.unet):
            warm_up(step, self.device)
            self.ranks.agree()  # all begin at once
            times, _ = timed(step, self.samples, self.device)
        return self._together(times)

    def _together(self, times: list[float]) -> dict[str, Any]:
        """Each sample's time on the slowest process, and the most memory that one held."""
        peak = torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else 0
        found = self.ranks.gathered([*times, float(peak)])
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        *slowest, most = (max(column) for column in zip(*found, strict=True))
        return {"ms": slowest, "peak_bytes": most or None}


def main(argv: Sequence[str] | None = None) -> int:
    """Measures what `parser` describes; the first process writes the rows. A failure is one line on stderr."""
    arguments = parser().parse_args(argv)
    try:
        device = pick_device(arguments.device)
        with joined(device):
            size = None if arguments.side is None else (arguments.side,) * 3
            bench = Bench(arguments.network, size, arguments.channels, device, arguments.samples)
            rows = []
            for setting in arguments.settings:
                for micro_steps in arguments.micro_steps:
                    rows.append(bench.step(setting, micro_steps))
                if bench.ranks.world > 1:
                    rows.append(bench.step(setting, max(arguments.micro_steps), "bf16"))
                if arguments.sample:
                    rows.append(bench.sample(setting))
                if bench.ranks.lead:
                    with replacing(arguments.out) as temporary:
                        temporary.write_text(json.dumps({"gpus": bench.ranks.world, "rows": rows}) + "\n")
    except BadInput as error:
        print(error, file=sys.stderr)
        return 1
    except torch.OutOfMemoryError:
        print("out of memory: this GPU is too small for it", file=sys.stderr)
        return 1
    return 0


def parser() -> argparse.ArgumentParser:
    """The program's arguments."""
    found = argparse.ArgumentParser(prog="python -m medddpm.study.scaling.worker", description=__doc__)
    found.add_argument("--network", choices=list(NETWORKS), default="med-ddpm")
    found.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=["OPT1", "FAST"])
    found.add_argument("--micro-steps", nargs="+", type=int, default=[2])
    found.add_argument("--sample", action="store_true")
    found.add_argument("--samples", type=int, default=20)
    found.add_argument("--side", type=int, help="a small network on small volumes: a rehearsal")
    found.add_argument("--channels", type=int, default=64)
    found.add_argument("--device", default="auto")
    found.add_argument("--out", type=Path, required=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
