"""Segments the tissues of a brain volume with MONAI's SegResNet, trained on volumes whose tissues are known.

A judge of samples: it is trained on subjects that no other model has seen. A network is a judge of what it knows: on a
volume unlike its training's it may draw a brain from memory. So its verdict stands beside numbers that need no network,
or that fall when it invents: `medddpm.quality.measures`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from medddpm.errors import BadInput
from medddpm.quality.intervals import Estimate, bootstrap, mean_of

TISSUES = ("background", "csf", "ventricles", "grey", "white", "oedema", "tumour")
"""The classes, by their labels. `csf` is the fluid outside the ventricles; `grey` includes the deep grey matter."""

BACKGROUND, CSF, VENTRICLES, GREY, WHITE, OEDEMA, TUMOUR = range(len(TISSUES))

SMALLEST_STEP = 8
"""A volume's edges are multiples of it: the network halves them three times."""

WIDTH = 16
"""The first level's channels: 2.9 million weights, 11.7 MB in float32."""


class Segmentation(NamedTuple):
    """The tissues of volumes.

    Args:
        labels: (N, D, W, H) uint8 of `TISSUES`.
        confidence: (N,) float32, the mean over voxels that are no background of the most probable class's probability
            (Hendrycks & Gimpel 2017, ICLR, whose measure of what a network does not know it is); NaN without such
            voxels.
    """

    labels: Tensor
    confidence: Tensor


def network_for(channels: int, width: int = WIDTH) -> nn.Module:
    """Returns MONAI's SegResNet (Myronenko 2018, arXiv 1810.11654), untrained, with a class for each of `TISSUES`.

    Args:
        channels: of a volume.
        width: channels of the first level, a multiple of 8; each of three further levels has twice as many.
    """
    from monai.networks.nets.segresnet import SegResNet

    return SegResNet(
        init_filters=width, in_channels=channels, out_channels=len(TISSUES), blocks_down=(1, 2, 2, 2)
    )  # fmt: skip


def train_segmenter(
    images: Tensor,
    labels: Tensor,
    *,
    steps: int,
    batch: int = 4,
    width: int = WIDTH,
    learning_rate: float = 3e-3,
    seed: int = 0,
) -> nn.Module:
    """Trains a segmenter: MONAI's Dice with cross-entropy, Adam, random left and right; in BF16 on a GPU.

    A tissue's weight is one over the root of its share of the voxels, as CSF has one in a hundred. The rate falls to 0
    in the second half. All numbers are choices.

    Args:
        images: (N, C, D, W, H) float32 in [-1, 1], on the device that trains; left and right along the last axis.
        labels: (N, D, W, H) whole numbers of `TISSUES`, there too.
        steps: of the optimizer.
        batch: volumes a step.
        width: see `network_for`.
        learning_rate: in the first half; the last layer's is ten times that.
        seed: of weights and order; the caller's generators stay as they are.

    Returns:
        the network, on that device, for evaluation.

    Raises:
        BadInput: images and labels do not fit together, or the network.
    """
    from monai.losses.dice import DiceCELoss

    _check(images)
    if tuple(labels.shape) != (len(images), *images.shape[2:]):
        problem = f"labels of shape {tuple(labels.shape)} for images of shape {tuple(images.shape)}"
        raise BadInput("tissues", problem, "give each volume its labels (N, D, W, H)")
    device = images.device
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = network_for(images.shape[1], width).to(device)
    parts: dict[bool, list[nn.Parameter]] = {False: [], True: []}
    for name, parameter in network.named_parameters():
        parts[name.startswith("conv_final.")].append(parameter)
    # At the others' rate the last layer's logits would grow for hundreds of steps before they tell tissues apart.
    groups: list[dict[str, Any]] = [{"params": parts[False]}, {"params": parts[True], "lr": 10 * learning_rate}]
    optimizer = torch.optim.Adam(groups, learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, 2 * (1 - step / steps)))
    shares = torch.bincount(labels.flatten().long(), minlength=len(TISSUES)) / labels.numel()
    loss_of = DiceCELoss(to_onehot_y=True, softmax=True, weight=shares.clamp(min=1e-3) ** -0.5)
    generator = torch.Generator().manual_seed(seed)
    order: list[int] = []
    network.train()
    for _ in range(steps):
        while len(order) < batch:
            order += torch.randperm(len(images), generator=generator).tolist()
        chosen, order = order[:batch], order[batch:]
        image, label = images[chosen], labels[chosen][:, None].long()
        if torch.rand((), generator=generator) < 0.5:
            image, label = image.flip(-1), label.flip(-1)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            predicted = network(image)
        loss = loss_of(predicted.float(), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return network.eval()


@torch.inference_mode()
def segment(network: nn.Module, images: Tensor, batch: int = 8) -> Segmentation:
    """Returns the tissues of volumes.

    Args:
        network: of `train_segmenter`.
        images: (N, C, D, W, H) in [-1, 1], on any device.
        batch: volumes at once.

    Returns:
        on the CPU.

    Raises:
        BadInput: the volumes do not fit the network.
    """
    _check(images)
    device = next(network.parameters()).device
    labels, confidence = [], []
    for part in images.split(batch):
        share, label = network(part.to(device).float()).softmax(dim=1).max(dim=1)
        inside = label != BACKGROUND
        labels.append(label.to(torch.uint8).cpu())
        confidence.append(((share * inside).flatten(1).sum(1) / inside.flatten(1).sum(1)).cpu())
    return Segmentation(torch.cat(labels), torch.cat(confidence))


@torch.inference_mode()
def features(network: nn.Module, images: Tensor, batch: int = 8) -> Tensor:
    """Returns what the network's encoder makes of volumes: the features of Fréchet distance and MMD.

    Args:
        network: of `train_segmenter`.
        images: (N, C, D, W, H).
        batch: volumes at once.

    Returns:
        (N, cells, 8 · width) float64 on the CPU, as `medddpm.quality.distances.frechet` takes them; a cell is 8 × 8 × 8
        voxels.
    """
    _check(images)
    device = next(network.parameters()).device
    parts = [network.encode(part.to(device).float())[0] for part in images.split(batch)]  # type: ignore[operator]
    return torch.cat([part.flatten(2).transpose(1, 2).double().cpu() for part in parts])


def tissue_dice(labels: Tensor, truth: Tensor) -> Tensor:
    """Returns MONAI's Dice of each volume and tissue, (N, tissues) float32; NaN where the truth lacks the tissue.

    Args:
        labels: (N, D, W, H) whole numbers of `TISSUES`.
        truth: the same of the truth.
    """
    from monai.metrics.meandice import compute_dice
    from monai.networks.utils import one_hot

    one, two = (one_hot(part[:, None].long(), len(TISSUES)) for part in (labels, truth))
    return compute_dice(one, two).cpu()


def mean_dice(labels: Tensor, truth: Tensor) -> dict[str, Estimate]:
    """Returns the mean Dice of each tissue over the volumes that have it, with its 95% interval; none of a tissue that
    no volume has.

    Args:
        labels, truth: as for `tissue_dice`.
    """
    dice, estimates = tissue_dice(labels, truth), {}
    for tissue, name in enumerate(TISSUES):
        values = dice[:, tissue][dice[:, tissue].isfinite()].numpy()
        if len(values):
            estimates[name] = bootstrap(mean_of(values), (len(values),), bounds=(0, 1))
    return estimates


def _check(images: Tensor) -> None:
    if images.dim() != 5 or len(images) == 0 or any(edge % SMALLEST_STEP or edge == 0 for edge in images.shape[2:]):
        problem = f"volumes of shape {tuple(images.shape)}"
        raise BadInput("volumes", problem, f"give (N, C, D, W, H) with edges that are multiples of {SMALLEST_STEP}")
