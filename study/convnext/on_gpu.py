"""Operators of the report that a kernel on the GPU replaces, its inputs and its output copied at each call."""

from __future__ import annotations

import numpy as np
import torch

from study.convnext import launches
from study.convnext.operators import Array

CONVOLUTION = "tiled, 4 outputs"


def conv2d_on_gpu(device: torch.device, padded: Array, weight: Array, bias: Array, stride: int = 1) -> Array:
    """Computes `operators.conv2d` by the tiled kernel (a depthwise one directly), transfers included."""
    x, w, b = (torch.from_numpy(array).to(device) for array in (padded, weight, bias))
    side = w.shape[0]
    sides = [(length - side) // stride + 1 for length in x.shape[1:3]]
    out = x.new_empty((len(x), *sides, w.shape[3]))
    if w.shape[2] == 1 and x.shape[3] == w.shape[3]:
        launches.depthwise(x, w[:, :, 0].contiguous(), b.expand(len(x), -1).contiguous(), out, 0)()
    else:
        for launch in launches.convolution(CONVOLUTION, x, w, b, out, stride, 0):
            launch()
    return np.asarray(out.cpu().numpy())


def layer_norm_on_gpu(device: torch.device, x: Array, gain: Array, bias: Array) -> Array:
    """Computes `operators.layer_norm` by warps, transfers included."""
    images, g, b = (torch.from_numpy(array).to(device) for array in (x, gain, bias))
    out = torch.empty_like(images)
    for launch in launches.layer_norm("warp", images, g, b, out):
        launch()
    return np.asarray(out.cpu().numpy())
