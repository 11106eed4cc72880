"""Launches the kernels of `kernels` on tensors: their grids, their arguments and the layout of a block's weights.

Images are (N, H, W, C), dense, float32. On a GPU a launch goes to PyTorch's current stream and returns at once; on a
CPU numba's simulator computes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from medddpm.errors import BadInput
from study.convnext.kernels import block, block_tensor, conv, conv_async, norm, pointwise
from study.convnext.kernels.instructions import SIMULATED, cuda
from study.convnext.model import EPSILON, KERNEL, ConvNeXtBlock

FUSED_CHANNELS = block.CHANNELS
THREADS = 256  # of a block of the kernels with one output a thread

OUTPUTS = {"tiled": 1, "tiled, 2 outputs": 2, "tiled, 4 outputs": 4}  # of a thread
ASYNC = {"tiled, 2 outputs, async": 2, "tiled, 4 outputs, async": 4}
CONVOLUTIONS = ("direct", *OUTPUTS, *ASYNC)
NORMS = ("direct", "block", "warp")
BLOCKS = ("unfused", "fused", "tensor", "tensor, async")


@dataclass(frozen=True)
class Launch:
    """A kernel, its grid and its arguments.

    Args:
        kernel: numba-cuda's.
        grid: blocks along each axis.
        threads: of a block.
        arguments: tensors and numbers.
    """

    kernel: Any
    grid: tuple[int, ...]
    threads: int
    arguments: tuple[Any, ...]

    def prepared(self) -> Callable[[], None]:
        """Hands the tensors to numba once; returns the launch, for a timed loop."""
        arguments = [_handed(argument) for argument in self.arguments]

        def launch() -> None:
            self.kernel[self.grid, self.threads, _stream()](*arguments)

        return launch

    def __call__(self) -> None:
        """Launches the kernel."""
        self.prepared()()


def _handed(argument: object) -> object:
    if not isinstance(argument, Tensor):
        return argument
    if not argument.is_contiguous():
        raise BadInput("a kernel's tensor", f"its strides {argument.stride()} are not dense", "pass x.contiguous()")
    tensor = argument.detach()
    return cuda.as_cuda_array(tensor, sync=False) if tensor.is_cuda else tensor.numpy()


def _stream() -> object:
    return 0 if SIMULATED else cuda.external_stream(torch.cuda.current_stream().cuda_stream)


def convolution(
    version: str, x: Tensor, weight: Tensor, bias: Tensor, out: Tensor, stride: int, padding: int
) -> list[Launch]:
    """Returns a dense convolution by one of `CONVOLUTIONS`.

    Args:
        version: its name.
        x: (N, H, W, I).
        weight: (K, K, I, O).
        bias: (O,).
        out: (N, H', W', O), written.
        stride, padding: of both axes.

    Raises:
        BadInput: with asynchronous copies the numbers of channels are no multiples of four.
    """
    if version == "direct":
        return [_one_each(conv.conv2d_direct, out.numel(), (x, weight, bias, out, stride, padding))]
    pixels = (OUTPUTS | ASYNC)[version]
    grid, threads = conv.tiles(tuple(out.shape), pixels), conv.WARPS * conv.LANES
    if version in OUTPUTS:
        kernel = conv.conv2d_tiled(weight.shape[0], stride, pixels)
        return [Launch(kernel, grid, threads, (x, weight, bias, out, padding))]
    if any(channels % conv_async.MULTIPLE for channels in weight.shape[2:]):
        number = " to ".join(map(str, weight.shape[2:]))
        raise BadInput(f"convolution, {version}", f"it copies four channels at once, not {number}", "use 'tiled'")
    kernel = conv_async.conv2d_async(weight.shape[0], stride, pixels)
    arguments = (x.reshape(-1), weight.reshape(-1), bias, out, padding, *x.shape[1:])
    return [Launch(kernel, grid, threads, arguments)]


def depthwise(x: Tensor, weight: Tensor, shift: Tensor, out: Tensor, padding: int) -> Launch:
    """Returns a depthwise convolution of stride 1: x (N, H, W, C), weight (K, K, C), shift (N, C) to out (N, …, C)."""
    return _one_each(conv.depthwise_direct, out.numel(), (x, weight, shift, out, padding))


def layer_norm(version: str, x: Tensor, gain: Tensor, bias: Tensor, out: Tensor) -> list[Launch]:
    """Returns a layer norm over the last axis of x (…, C) by one of `NORMS`, written to out."""
    rows, result = (tensor.view(-1, tensor.shape[-1]) for tensor in (x, out))
    arguments = (rows, gain, bias, result, EPSILON)
    if version == "direct":
        return [_one_each(norm.layer_norm_direct, len(rows), arguments)]
    warps = {"block": norm.WARPS, "warp": 1}[version]
    grid = -(-len(rows) * warps // norm.WARPS)
    return [Launch(norm.layer_norm_shuffled(warps), (grid,), norm.THREADS, arguments)]


@dataclass(frozen=True)
class BlockWeights:
    """A ConvNeXt block's parameters as the kernels read them.

    Args:
        depthwise: (7, 7, C).
        depthwise_bias: (C,), to be added to the shift by the timestep.
        gain, bias: (C,), the norm's.
        expand, expand_bias: (C, 4C), (4C,).
        project, project_bias: (4C, C), (C,).
        expand_pairs, project_pairs: (4C, C/2) and (C, 2C) int32, each of two neighbouring inputs' weights in BF16.
    """

    depthwise: Tensor
    depthwise_bias: Tensor
    gain: Tensor
    bias: Tensor
    expand: Tensor
    expand_bias: Tensor
    project: Tensor
    project_bias: Tensor
    expand_pairs: Tensor
    project_pairs: Tensor

    @classmethod
    def of(cls, module: ConvNeXtBlock) -> BlockWeights:
        """Returns the parameters of `module`, on its device, in float32."""
        depthwise_bias = module.depthwise.bias
        assert depthwise_bias is not None
        expand, project = module.expand.weight.detach(), module.project.weight.detach()
        return cls(
            module.depthwise.weight.detach()[:, 0].permute(1, 2, 0).contiguous(),
            depthwise_bias.detach(),
            module.norm.weight.detach(),
            module.norm.bias.detach(),
            expand.T.contiguous(),
            module.expand.bias.detach(),
            project.T.contiguous(),
            module.project.bias.detach(),
            expand.bfloat16().contiguous().view(torch.int32),
            project.bfloat16().contiguous().view(torch.int32),
        )

    @property
    def channels(self) -> int:
        """C."""
        return self.gain.shape[0]

    def taps(self) -> Tensor:
        """Returns the depthwise weights as (49, C)."""
        return self.depthwise.view(-1, self.channels)


def convnext_block(version: str, x: Tensor, shift: Tensor, weights: BlockWeights, out: Tensor) -> list[Launch]:
    """Returns a ConvNeXt block by one of `BLOCKS`: six launches unfused, one otherwise.

    Args:
        version: its name.
        x: (N, H, W, C).
        shift: (N, C), the depthwise convolution's bias and the timestep's shift.
        weights: of the block.
        out: as `x`, written.

    Raises:
        BadInput: the fused kernels do not serve that number of channels.
    """
    if version == "unfused":
        return _unfused(x, shift, weights, out)
    served = FUSED_CHANNELS if version == "fused" else block_tensor.CHANNELS
    if weights.channels not in served:
        names = ", ".join(map(str, served))
        raise BadInput("a fused ConvNeXt block", f"it has {weights.channels} channels", f"choose one of {names}")
    w = weights
    norms = (w.gain, w.bias)
    if version == "fused":
        products = (w.expand, w.expand_bias, w.project, w.project_bias)
        arguments = (x, w.taps(), shift, *norms, *products, out, EPSILON)
        return [Launch(block.block_fused(w.channels), block.tiles(tuple(x.shape)), block.THREADS, arguments)]
    kernel = block_tensor.block_tensor(w.channels, version == "tensor, async")
    products = (w.expand_pairs, w.expand_bias, w.project_pairs, w.project_bias)
    arguments = (x.view(-1), w.taps(), shift, *norms, *products, out, EPSILON)
    return [Launch(kernel, block_tensor.tiles(tuple(x.shape)), block_tensor.THREADS, arguments)]


def _unfused(x: Tensor, shift: Tensor, w: BlockWeights, out: Tensor) -> list[Launch]:
    convolved, normed = torch.empty_like(x), torch.empty_like(x)
    raised = x.new_empty((x.numel() // w.channels, 4 * w.channels))
    active, projected = torch.empty_like(raised), torch.empty_like(x)
    rows = (-1, w.channels)
    expand = (normed.view(rows), w.expand, w.expand_bias, raised)
    project = (active, w.project, w.project_bias, projected.view(rows))
    return [
        depthwise(x, w.depthwise, shift, convolved, KERNEL // 2),
        *layer_norm("direct", convolved, w.gain, w.bias, normed),
        _one_each(pointwise.linear_direct, raised.numel(), expand),
        _one_each(pointwise.gelu, raised.numel(), (raised.view(-1), active.view(-1))),
        _one_each(pointwise.linear_direct, x.numel(), project),
        _one_each(pointwise.add, x.numel(), (projected.view(-1), x.view(-1), out.view(-1))),
    ]


def _one_each(kernel: Any, items: int, arguments: tuple[Any, ...]) -> Launch:
    """Returns a launch with one item a thread; blocks are small in the simulator, whose threads are Python's."""
    threads = 32 if SIMULATED else THREADS
    return Launch(kernel, (-(-items // threads),), threads, arguments)
