"""The network of `model` computed by the report's operators, one call each, so that each can be timed and replaced."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from medddpm.schedules import schedule
from study.convnext.model import ConvNeXtBlock, ConvNeXtUNet, embedded
from study.convnext.operators import Array, OperatorTimer


def forward(network: ConvNeXtUNet, x: Array, t: npt.NDArray[np.int64], call: OperatorTimer) -> Array:
    """Computes `network(x, t)`.

    Args:
        network: on the CPU, in float32.
        x: (N, H, W, C) float32.
        t: (N,).
        call: the operators.

    Returns:
        (N, H, W, C).
    """
    embed = network.embed
    time = _linear(embed, embedded(torch.from_numpy(t), embed.in_features).numpy(), call)
    time = _linear(network.mix, call("element_matmul", time, call("sigmoid", time)), call)
    x = convolved(network.stem, x, call)
    skips = []
    for level, down in zip(network.encoder, network.down, strict=True):
        x = block(level, x, time, call)  # type: ignore[arg-type]
        skips.append(call("identity", x))
        x = convolved(down, x, call)  # type: ignore[arg-type]
    x = block(network.middle, x, time, call)
    for up, level in zip(network.up, network.decoder, strict=True):
        joined = np.concatenate([call("upsample", x), skips.pop()], axis=-1)
        x = block(level, convolved(up, joined, call), time, call)  # type: ignore[arg-type]
    return convolved(network.head, call("relu", _normed(network.norm, x, call)), call)


def block(module: ConvNeXtBlock, x: Array, time: Array, call: OperatorTimer) -> Array:
    """Computes `module(x, time)`, x (N, H, W, C); its products over channels are convolutions of 1×1."""
    shift = _linear(module.shift, time, call)
    skip = call("identity", x)
    inner = convolved(module.depthwise, x, call) + shift[:, None, None, :]
    inner = _normed(module.norm, inner, call)
    inner = call("gelu", call("conv2d", inner, *_one_by_one(module.expand)))
    return np.asarray(call("conv2d", inner, *_one_by_one(module.project)) + skip, dtype=np.float32)


def sample(network: ConvNeXtUNet, noise: Array, steps: int, call: OperatorTimer) -> Array:
    """Computes the last `steps` of DDPM's reverse process (Ho et al. 2020, algorithm 2), with noise of a fixed seed.

    Args:
        network: see `forward`.
        noise: (N, H, W, C), x at the first of these steps.
        steps: evaluations of the network, of a schedule as long as that.
        call: the operators.

    Returns:
        images (N, H, W, C) in [0, 1].
    """
    tables = {name: values.astype(np.float32) for name, values in schedule(steps).items()}
    generator = np.random.default_rng(0)
    x = noise
    for step in reversed(range(steps)):
        t = np.full(len(x), step)

        def at(name: str, t: npt.NDArray[np.int64] = t) -> Array:
            return np.asarray(call("extract", tables[name], t))

        predicted = forward(network, x, t, call)
        clean = at("sqrt_recip_alphas_cumprod") * x - at("sqrt_recipm1_alphas_cumprod") * predicted
        x = at("posterior_mean_coef1") * clean.clip(-1, 1) + at("posterior_mean_coef2") * x
        if step:
            spread = np.exp(np.float32(0.5) * at("posterior_log_variance_clipped"))
            x = x + spread * generator.standard_normal(x.shape, dtype=np.float32)
    return np.asarray(call("unnormalize_to_zero_to_one", x))


def convolved(module: nn.Conv2d, x: Array, call: OperatorTimer) -> Array:
    """Computes a convolution and the padding before it, each by an operator."""
    padding = module.padding[0]
    padded = call("conv2d_pad", x, padding) if padding else x
    return np.asarray(call("conv2d", padded, *weights(module), module.stride[0]))


def weights(module: nn.Conv2d) -> tuple[Array, Array]:
    """Returns a convolution's weight as `operators.conv2d` takes it, (K, K, I, O), and its bias."""
    assert module.bias is not None
    return array(module.weight.permute(2, 3, 1, 0)), array(module.bias)


def array(tensor: Tensor) -> Array:
    """Returns a tensor as a dense float32 array."""
    return np.ascontiguousarray(tensor.detach().float().cpu().numpy())


def _one_by_one(module: nn.Linear) -> tuple[Array, Array]:
    return array(module.weight.T[None, None]), array(module.bias)


def _linear(module: nn.Linear, x: Array, call: OperatorTimer) -> Array:
    return np.asarray(call("linear", x, array(module.weight.T), array(module.bias)))


def _normed(module: nn.LayerNorm, x: Array, call: OperatorTimer) -> Any:
    return call("layer_norm", x, array(module.weight), array(module.bias))
