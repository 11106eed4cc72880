"""Six networks of other people at their users' sizes, as step files for `medddpm profile` and `medddpm compare`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from study.bench.others import NETS, class_of

Step = tuple[nn.Module, Any, tuple[torch.Tensor, ...]]


def _segmentation(model: nn.Module, shape: tuple[int, ...], classes: int) -> Step:
    batch = torch.randn(*shape), torch.randint(classes, (shape[0], *shape[2:]))
    return model, lambda m, x, y: F.cross_entropy(m(x), y), batch


def basic_unet() -> Step:
    """MONAI's BasicUNet, 96³."""
    return _segmentation(class_of(NETS, "BasicUNet")(3, 1, 2), (1, 1, 96, 96, 96), 2)


def segresnet() -> Step:
    """MONAI's SegResNet on four contrasts, 128³."""
    return _segmentation(class_of(NETS, "SegResNet")(3, 16, 4, 3), (1, 4, 128, 128, 128), 3)


def nnunet() -> Step:
    """nnU-Net's PlainConvUNet with instance norm, two patches of 128³."""
    widths, strides = [32, 64, 128, 256, 320, 320], [1, 2, 2, 2, 2, 2]
    norm = {"norm_op": nn.InstanceNorm3d, "norm_op_kwargs": {"affine": True}, "nonlin": nn.LeakyReLU}
    build = class_of("dynamic_network_architectures.architectures.unet", "PlainConvUNet")
    network = build(1, 6, widths, nn.Conv3d, 3, strides, 2, 2, 2, conv_bias=True, **norm)
    return _segmentation(network, (2, 1, 128, 128, 128), 2)


def swin() -> Step:
    """MONAI's SwinUNETR, 96³."""
    return _segmentation(class_of(NETS, "SwinUNETR")(1, 14, feature_size=48), (1, 1, 96, 96, 96), 14)


def diffusion() -> Step:
    """MONAI's DiffusionModelUNet without attention, 128³."""
    widths, attention = (32, 64, 128), (False, False, False)
    network = class_of(NETS, "DiffusionModelUNet")(
        3, 1, 1, channels=widths, attention_levels=attention, num_res_blocks=1
    )
    batch = torch.randn(1, 1, 128, 128, 128), torch.tensor([7]), torch.randn(1, 1, 128, 128, 128)
    return network, lambda m, x, t, y: F.mse_loss(m(x, t), y), batch


def resnet() -> Step:
    """torchvision's r3d_18 on eight clips of 16 frames, 112²."""
    batch = torch.randn(8, 3, 16, 112, 112), torch.randint(10, (8,))
    return (
        class_of("torchvision.models.video", "r3d_18")(num_classes=10),
        lambda m, x, y: F.cross_entropy(m(x), y),
        batch,
    )
