"""Trains the report's network on small images and draws samples: scikit-learn's digits, or CIFAR-10 from a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from medddpm.diffusion import GaussianDiffusion
from medddpm.errors import BadInput
from study.convnext.model import AtDepthOne, ConvNeXtUNet

TIMESTEPS = 250
SIDE = 32
CIFAR_FILES = tuple(f"data_batch_{n}.bin" for n in range(1, 6))
CIFAR_ROW = 1 + 3 * SIDE * SIDE  # bytes of a label and an image in the binary version


def digits(side: int = SIDE) -> Tensor:
    """Loads scikit-learn's 1797 digits of 8×8 (UCI, Alpaydin & Kaynak 1998), enlarged, in three equal channels.

    Args:
        side: 8 or a multiple of it; 32 enlarges by linear interpolation.

    Returns:
        (1797, 3, side, side) float32 in [-1, 1].
    """
    from sklearn.datasets import load_digits

    images = torch.from_numpy(load_digits().images).float()[:, None] / 16
    larger = torch.nn.functional.interpolate(images, size=(side, side), mode="bilinear", align_corners=False)
    return (2 * larger - 1).expand(-1, 3, -1, -1).contiguous()


def cifar(folder: Path) -> Tensor:
    """Reads the training images of CIFAR-10 (Krizhevsky 2009), from the files of its binary version.

    Returns:
        (50000, 3, 32, 32) float32 in [-1, 1].

    Raises:
        BadInput: a file is missing, or is no such file.
    """
    batches = []
    for name in CIFAR_FILES:
        path = folder / name
        remedy = "give the folder cifar-10-batches-bin of the binary version of CIFAR-10"
        if not path.is_file():
            raise BadInput(path, "there is no such file", remedy)
        raw: npt.NDArray[np.uint8] = np.fromfile(path, dtype=np.uint8)
        if not raw.size or raw.size % CIFAR_ROW:
            raise BadInput(path, f"its {raw.size} bytes are no rows of {CIFAR_ROW}", remedy)
        batches.append(raw.reshape(-1, CIFAR_ROW)[:, 1:].reshape(-1, 3, SIDE, SIDE))
    return torch.from_numpy(np.concatenate(batches)).float() / 127.5 - 1


def train(
    images: Tensor, steps: int, device: torch.device, batch: int = 128, rate: float = 1e-3,
    widths: Sequence[int] = (64, 128, 128), timesteps: int = TIMESTEPS, seed: int = 0,
) -> tuple[GaussianDiffusion, list[float]]:  # fmt: skip
    """Trains a new network by Adam, its rate falling to 0 along a cosine, in BF16 autocast on a GPU.

    Args:
        images: (count, C, H, W) in [-1, 1].
        steps: of the optimizer.
        device: trains.
        batch: images of a step, drawn with replacement.
        rate: the first learning rate.
        widths: the network's.
        timesteps: of the diffusion.
        seed: of weights, batches, timesteps and noise.

    Returns:
        the diffusion, its network's parameters being the average of the last steps; and each step's loss.
    """
    torch.manual_seed(seed)
    network = ConvNeXtUNet(images.shape[1], widths).to(device)
    diffusion = GaussianDiffusion(AtDepthOne(network), timesteps).to(device)
    average = torch.optim.swa_utils.AveragedModel(
        network, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(min(0.995, 1 - 10 / (steps + 10)))
    )
    optimizer = torch.optim.Adam(network.parameters(), rate, fused=device.type == "cuda")
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    on_device = images.to(device)
    mask = on_device.new_zeros((batch, 0, 1, *images.shape[2:]))  # unconditional: a mask of no channels
    losses = torch.zeros(steps, device=device)
    for step in range(steps):
        chosen = on_device[torch.randint(len(on_device), (batch,), device=device)]
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = diffusion.loss(chosen[:, :, None], mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        falling.step()
        average.update_parameters(network)
        losses[step] = loss.detach()
    network.load_state_dict(average.module.state_dict())
    return diffusion, losses.tolist()


@torch.no_grad()
def draw(diffusion: GaussianDiffusion, count: int, side: int, seed: int = 0) -> Tensor:
    """Draws images by DDPM's full chain: (count, C, side, side) in [-1, 1]."""
    device = diffusion.betas.device
    generator = torch.Generator().manual_seed(seed)  # on the CPU: the same noise on every machine
    mask = torch.zeros((count, 0, 1, side, side), device=device)
    return diffusion.sample(mask, generator=generator)[:, :, 0]
