"""PyTorch's own layers on the fast path: convolutions, resampling, linear layers; all stay channels-last."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from medddpm.fast.forward import Forward, Rule, Weight, autocast_dtype, hooked
from medddpm.fast.kernels import dispatch
from medddpm.fast.kernels.conv3d import conv3d, has_few_channels, takes_few_in
from medddpm.fast.kernels.depthwise import depthwise
from medddpm.fast.kernels.layout import channels_last
from medddpm.fast.kernels.upsample import upsample

ALIGNED = 8  # channels: with any other count, BF16 NDHWC convolutions miss the Tensor Cores' fast kernels
Layer = nn.Conv3d | nn.ConvTranspose3d
IDLE = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
F = TypeVar("F", bound=Forward)


def stand_in(module: object, kind: type[F]) -> F | None:
    """Returns the module's stand-in if it is of this kind and `free`, else None."""
    if not isinstance(module, nn.Module):
        return None
    forward = module.__dict__.get("forward")
    return forward if isinstance(forward, kind) and forward.free else None


def idle(module: nn.Module) -> bool:
    """Returns whether the layer returns its input unchanged."""
    forward = module.__dict__.get("forward")
    if type(module) not in IDLE or not isinstance(forward, Dropout | None) or hooked(module):
        return False
    return isinstance(module, nn.Identity) or not module.training or cast(nn.Dropout, module).p == 0


def in_tuples(layer: nn.Module) -> bool:
    """Returns whether a convolution's options are as its constructor writes them: PyTorch takes 2 for (2, 2, 2) too."""
    conv: Any = layer
    sizes = all(isinstance(option, tuple) for option in (conv.kernel_size, conv.stride, conv.dilation))
    return sizes and isinstance(conv.padding, tuple | str)


class Convolution(Forward):
    """nn.Conv3d and nn.ConvTranspose3d: the weight cast beforehand, the input channels-last, few channels padded."""

    what = "convolution"

    def __init__(self, module: nn.Module, features: frozenset[str]) -> None:
        super().__init__(module)
        self.weight = Weight(module)
        self.bias = Weight(module, "bias")
        self.few_channels, self.hopper = "few_channels" in features, "hopper" in features

    def compute(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        """x: (N, C, D, H, W). Returns the layer's result, channels-last."""
        if output_size is not None:
            return self.original(x, output_size)
        return self.product(x, self.bias()) if x.dim() == 5 else self.original(x)

    def fits(self) -> bool:
        """Returns whether the padding is of zeros, the options are tuples, and nothing else convolves in its place."""
        layer = self.module
        return in_tuples(layer) and bool(layer.padding_mode == "zeros") and "_conv_forward" not in layer.__dict__

    @property
    def pointwise(self) -> bool:
        """Returns whether it is a matrix product of each voxel's channels: 1³ at stride 1."""
        layer = self.module
        if layer.transposed or layer.groups != 1 or isinstance(layer.padding, str):
            return False
        return {*layer.kernel_size, *layer.stride} == {1} and set(layer.padding) == {0}

    def product(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Convolves x (N, C, D, H, W), with `bias` instead of the layer's own bias.

        What autocast would cast is cast here. Then the weight cast beforehand and the parameter itself, which the
        second forward of a checkpoint meets, are computed alike. A volume of few channels is cast as it is read.
        """
        weight, layer = self.weight(), self.module
        assert weight is not None  # the rule saw it
        dtype = autocast_dtype(x.device.type)
        real = x.is_floating_point() and weight.is_floating_point()
        if dtype is not None and real and weight.dtype != torch.float64 != x.dtype:
            weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
            plain = self.few_channels and is_plain(layer) and not layer.transposed
            if plain and takes_few_in(x, weight, layer.stride, layer.padding):
                return channels_last(conv3d(x, weight, bias, layer.stride, layer.padding))
            x = x.to(dtype)
        return convolve(channels_last(x), weight, bias, layer, self.few_channels, self.hopper)


def is_plain(layer: Layer) -> bool:
    """Returns whether it has neither groups nor dilation, and its padding is in numbers."""
    return layer.groups == 1 and set(layer.dilation) == {1} and not isinstance(layer.padding, str)


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, layer: Layer, few_channels: bool, hopper: bool = False
) -> Tensor:
    """Computes `layer`'s convolution of a channels-last x by the given weight and bias, in any layout.

    Args:
        x: (N, C, D, H, W).
        weight, bias: used in place of the layer's own.
        layer: gives the stride, the padding and whether the convolution is transposed.
        few_channels: whether channel counts that no fast kernel takes are rounded up: fewer than 8 input channels by
            channels of zeros, output channels by filters of zeros whose output is cut off again; and whether groups of
            one channel are computed by `kernels.depthwise`.
        hopper: whether `kernels.conv3d.hopper` may be used.

    Returns:
        (N, C_out, …), channels-last.
    """
    if layer.groups > 1 and not x.is_cuda:  # a CPU's channels-last gradients of depthwise weights may be wrong (2.13)
        x, weight = x.contiguous(), weight.contiguous()
    else:
        weight = channels_last(weight)
    inputs, outputs = (0, 1) if layer.transposed else (1, 0)
    wanted = weight.shape[outputs] * (layer.groups if layer.transposed else 1)
    apart = few_channels and 1 < layer.groups == x.shape[1] == wanted and x.dtype == weight.dtype
    if apart and set(layer.dilation) == {1} and not isinstance(layer.padding, str):
        more = layer.output_padding if layer.transposed else None
        return channels_last(depthwise(x, weight, bias, *cast(Any, (layer.stride, layer.padding, more))))
    plain = few_channels and is_plain(layer)
    if plain and not layer.transposed and _cuts_patches(x, weight, layer):
        return _of_patches(x, weight, bias)
    ours = not layer.transposed and plain and has_few_channels(x, weight, layer.stride, cast(Any, layer.padding))
    if plain and not ours and (x.is_cuda or weight.dtype in dispatch.REDUCED):
        if weight.shape[inputs] < ALIGNED:
            lacking = ALIGNED - weight.shape[inputs]
            x = functional.pad(x, (0, 0) * 3 + (0, lacking))
            weight = _padded(weight, inputs, lacking)
        if lacking := -wanted % ALIGNED:
            weight = _padded(weight, outputs, lacking)
            bias = None if bias is None else functional.pad(bias, (0, lacking))
    if isinstance(layer, nn.ConvTranspose3d):
        padding = cast(tuple[int, int, int], layer.padding)
        y = functional.conv_transpose3d(
            x, weight, bias, layer.stride, padding, layer.output_padding, layer.groups, layer.dilation
        )
    elif plain:
        y = conv3d(x, weight, bias, layer.stride, cast(tuple[int, int, int], layer.padding), hopper)
    else:
        y = functional.conv3d(x, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)
    return channels_last(y if y.shape[1] == wanted else y[:, :wanted])


def _cuts_patches(x: Tensor, weight: Tensor, layer: Layer) -> bool:
    """Returns whether the layer embeds patches: kernels of 4³ or more side by side, which are slow in libraries."""
    sides = weight.shape[2:]
    if tuple(sides) != tuple(layer.stride) or any(map(bool, layer.padding)) or min(sides) < 4:
        return False
    return all(whole >= side for whole, side in zip(x.shape[2:], sides, strict=True))


def _of_patches(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The convolution as a matrix product of each patch's values."""
    (n, c), (kd, kh, kw) = x.shape[:2], weight.shape[2:]
    d, h, w = (whole // side for whole, side in zip(x.shape[2:], weight.shape[2:], strict=True))
    patches = x[:, :, : d * kd, : h * kh, : w * kw].reshape(n, c, d, kd, h, kh, w, kw)
    rows = patches.permute(0, 2, 4, 6, 1, 3, 5, 7).reshape(n, d, h, w, -1)
    return functional.linear(rows, weight.flatten(1), bias).permute(0, 4, 1, 2, 3)


def _padded(weight: Tensor, dim: int, lacking: int) -> Tensor:
    """Appends `lacking` zeros to (O, I, D, H, W) along `dim`; channels-last."""
    shape = list(weight.shape)
    shape[dim] = lacking
    return channels_last(torch.cat([weight, weight.new_zeros(shape)], dim))


class Trilinear(Forward):
    """nn.Upsample to twice the side, trilinear, corners not aligned."""

    what = "upsampling"

    def fits(self) -> bool:
        """Returns whether the layer is still set so."""
        return _trilinear(self.module)

    def compute(self, x: Tensor) -> Tensor:
        """x: (N, C, D, H, W). Returns (N, C, 2D, 2H, 2W)."""
        return upsample(channels_last(x)) if x.dim() == 5 else self.original(x)


class Nearest(Forward):
    """nn.Upsample by whole factors, nearest: each voxel repeated, without leaving channels-last."""

    what = "upsampling"

    def compute(self, x: Tensor) -> Tensor:
        """x: (N, C, D, H, W). Returns (N, C, a·D, b·H, c·W)."""
        factors = _repeats(self.module)
        if x.dim() != 5 or factors is None:
            return self.original(x)
        (n, c, d, h, w), (fd, fh, fw) = x.shape, factors
        voxels = channels_last(x).permute(0, 2, 3, 4, 1)[:, :, None, :, None, :, None]
        repeated = voxels.expand(n, d, fd, h, fh, w, fw, c).reshape(n, d * fd, h * fh, w * fw, c)
        return repeated.permute(0, 4, 1, 2, 3)


class Pool(Forward):
    """nn.AvgPool3d with windows that tile the volume: PyTorch's own kernel knows the contiguous layout only."""

    what = "pooling"

    def compute(self, x: Tensor) -> Tensor:
        """x: (N, C, D, H, W). Returns (N, C, D/a, H/b, W/c)."""
        factors = _tiles(self.module)
        if x.dim() != 5 or factors is None or any(side % f for side, f in zip(x.shape[2:], factors, strict=True)):
            return self.original(x)
        (n, c, d, h, w), (fd, fh, fw) = x.shape, factors
        tiles = channels_last(x).permute(0, 2, 3, 4, 1).reshape(n, d // fd, fd, h // fh, fh, w // fw, fw, c)
        return tiles.mean((2, 4, 6)).permute(0, 4, 1, 2, 3)


class Dropout(Forward):
    """nn.Dropout of a volume, computed by PyTorch itself.

    Which values are dropped depends on their order in memory: in that of a contiguous volume, a seed drops the same
    values as without the fast path. A layer that works in place drops in the order that it finds.
    """

    def compute(self, x: Tensor) -> Tensor:
        """x: any shape. Returns the same."""
        layer = self.module
        if x.dim() != 5 or idle(layer) or layer.inplace:
            return self.original(x)
        return channels_last(self.original(x.contiguous()))


class Linear(Forward):
    """nn.Linear and nn.Conv1d: the weight cast beforehand."""

    what = "linear layer"

    def __init__(self, module: nn.Module, features: frozenset[str]) -> None:
        super().__init__(module)
        self.weight = Weight(module)
        self.bias = Weight(module, "bias")

    def compute(self, x: Tensor) -> Tensor:
        """x: (…, in) or (N, in, L). Returns (…, out) or (N, out, L)."""
        weight = self.weight()
        assert weight is not None  # the rule saw it
        if isinstance(self.module, nn.Conv1d):
            return self.module._conv_forward(x, weight, self.bias())
        return functional.linear(x, weight, self.bias())


class LayerNorm(Forward):
    """nn.LayerNorm of rows in reduced precision, which autocast would copy in float32, and what follows work on that.

    PyTorch's kernel computes the statistics in float32 either way. Of float32 rows the layer itself makes its norm.
    """

    what = "layer norm"

    def __init__(self, module: nn.Module, features: frozenset[str]) -> None:
        super().__init__(module)
        self.weight, self.bias = Weight(module), Weight(module, "bias")

    def compute(self, x: Tensor) -> Tensor:
        """x: (…, *normalized_shape). Returns the same shape; of x's dtype where that is BF16 or FP16."""
        layer = self.module
        if x.dtype not in dispatch.REDUCED or autocast_dtype(x.device.type) is None:
            return self.original(x)
        weight, bias = (None if p is None else p.to(x.dtype) for p in (self.weight(), self.bias()))
        with torch.autocast(x.device.type, enabled=False):
            return functional.layer_norm(x, layer.normalized_shape, weight, bias, layer.eps)


def _triple(value: Any) -> tuple[int, int, int] | None:
    """Returns a size or factor, one for all axes or one for each, as three whole numbers; None if it is not that."""
    values = tuple(value) if isinstance(value, tuple | list) else (value,) * 3
    if len(values) != 3 or any(v is None or v != int(v) or v < 1 for v in values):
        return None
    return int(values[0]), int(values[1]), int(values[2])


def _convolution(module: nn.Module, features: frozenset[str]) -> Forward | None:
    fits = module._parameters.get("weight") is not None and getattr(module, "padding_mode", "") == "zeros"
    return Convolution(module, features) if fits else None


def _factors(layer: nn.Upsample) -> tuple[int, int, int] | None:
    """Returns the whole factors of an upsampling; None if it has none."""
    return _triple(layer.scale_factor) if layer.size is None and not layer.recompute_scale_factor else None


def _trilinear(layer: nn.Upsample) -> bool:
    return layer.mode == "trilinear" and _factors(layer) == (2, 2, 2) and not layer.align_corners


def _repeats(layer: nn.Upsample) -> tuple[int, int, int] | None:
    return _factors(layer) if layer.mode == "nearest" else None


def _tiles(layer: nn.AvgPool3d) -> tuple[int, int, int] | None:
    """Returns the sides of windows that tile the volume; None if these do not."""
    factors = _triple(layer.kernel_size)
    whole = _triple(layer.stride) == factors and not layer.ceil_mode and layer.divisor_override is None
    return factors if whole and layer.padding in (0, (0, 0, 0), [0, 0, 0]) else None


def _upsample(module: nn.Module, features: frozenset[str]) -> Forward | None:
    layer = cast(nn.Upsample, module)
    if "upsample" not in features:
        return None
    return Trilinear(module) if _trilinear(layer) else Nearest(module) if _repeats(layer) else None


def _pool(module: nn.Module, features: frozenset[str]) -> Forward | None:
    return Pool(module) if "upsample" in features and _tiles(cast(nn.AvgPool3d, module)) else None


def _linear(module: nn.Module, features: frozenset[str]) -> Forward | None:
    fits = module._parameters.get("weight") is not None
    return Linear(module, features) if "casts" in features and fits else None


def _layer_norm(module: nn.Module, features: frozenset[str]) -> Forward | None:
    return LayerNorm(module, features) if "casts" in features else None


RULES: dict[str, Rule] = {
    "torch.nn.modules.conv.Conv1d": _linear,
    "torch.nn.modules.conv.Conv3d": _convolution,
    "torch.nn.modules.conv.ConvTranspose3d": _convolution,
    "torch.nn.modules.dropout.Dropout": Dropout,
    "torch.nn.modules.linear.Linear": _linear,
    "torch.nn.modules.normalization.LayerNorm": _layer_norm,
    "torch.nn.modules.pooling.AvgPool3d": _pool,
    "torch.nn.modules.upsampling.Upsample": _upsample,
}
