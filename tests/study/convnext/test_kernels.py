"""The numba-cuda kernels held to PyTorch in float64, on a GPU or in numba's simulator, borders and rests included."""

from __future__ import annotations

import threading

import pytest
import torch
from helpers.gpu import DEVICE
from torch import Tensor
from torch.nn import functional

from medddpm.errors import BadInput
from study.convnext import launches
from study.convnext.kernels import simulated
from study.convnext.kernels.instructions import SIMULATED, cuda, shuffle_xor
from study.convnext.launches import BlockWeights
from study.convnext.model import EPSILON, ConvNeXtBlock

CLOSE = {"tensor": 2e-2, "tensor, async": 2e-2}  # BF16 has 8 bits; all else is float32


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, device=DEVICE)


def unwritten(like: Tensor) -> Tensor:
    return torch.full(like.shape, float("nan"), device=DEVICE)


def error(found: Tensor, right: Tensor) -> float:
    return float((found.double() - right).norm() / right.norm())


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("version", launches.CONVOLUTIONS)
def test_a_convolution_is_pytorchs(version: str, stride: int) -> None:
    # Neither all channels of a chunk, nor all lanes; three chunks, so that with copies ahead every stage is used again.
    inputs, outputs = (20, 8) if version in launches.ASYNC else (18, 5)
    x, weight, bias = drawn(1, 3, 5, inputs), drawn(3, 3, inputs, outputs), drawn(outputs)
    filters, images = weight.permute(3, 2, 0, 1).double(), x.permute(0, 3, 1, 2).double()
    right = functional.conv2d(images, filters, bias.double(), stride, 1).permute(0, 2, 3, 1)
    out = unwritten(right)
    for launch in launches.convolution(version, x, weight, bias, out, stride, 1):
        launch()
    assert error(out, right) < 1e-5


def test_a_convolution_without_padding_of_more_outputs_than_lanes() -> None:
    x, weight, bias = drawn(2, 3, 3, 3), drawn(1, 1, 3, 33), drawn(33)
    right = torch.einsum("nhwi,io->nhwo", x.double(), weight[0, 0].double()) + bias.double()
    out = unwritten(right)
    for launch in launches.convolution("tiled, 4 outputs", x, weight, bias, out, 1, 0):
        launch()
    assert error(out, right) < 1e-5


def test_asynchronous_copies_take_channels_in_fours() -> None:
    x, weight, out = drawn(1, 3, 3, 6), drawn(3, 3, 6, 8), drawn(1, 3, 3, 8)
    with pytest.raises(BadInput, match=r"it copies four channels at once, not 6 to 8; use 'tiled'"):
        launches.convolution("tiled, 2 outputs, async", x, weight, drawn(8), out, 1, 1)


@pytest.mark.parametrize(("version", "rows"), [("direct", 9), ("block", 2), ("warp", 9)])
def test_a_layer_norm_is_pytorchs(version: str, rows: int) -> None:
    x, gain, bias = drawn(rows, 40) + 3, drawn(40), drawn(40)
    right = functional.layer_norm(x.double(), (40,), gain.double(), bias.double(), EPSILON)
    out = unwritten(right)
    for launch in launches.layer_norm(version, x, gain, bias, out):
        launch()
    assert error(out, right) < 1e-5


@pytest.mark.parametrize(
    ("version", "channels", "sides"),
    [("unfused", 16, (2, 3)), ("fused", 32, (3, 2)), ("tensor", 16, (3, 3)), ("tensor, async", 32, (3, 3))],
)
@pytest.mark.long
def test_a_block_is_pytorchs(version: str, channels: int, sides: tuple[int, int]) -> None:
    module = ConvNeXtBlock(channels, 8).to(DEVICE)
    double = ConvNeXtBlock(channels, 8).to(DEVICE).double()
    double.load_state_dict(module.state_dict())
    x, shift = drawn(1, *sides, channels), drawn(1, channels)
    with torch.no_grad():
        right = double.body(x.permute(0, 3, 1, 2).double(), shift.double()).permute(0, 2, 3, 1)
    weights, out = BlockWeights.of(module), unwritten(x)
    listed = launches.convnext_block(version, x, shift + weights.depthwise_bias, weights, out)
    assert len(listed) == (6 if version == "unfused" else 1)
    for launch in listed:
        launch()
    assert error(out - x, right - x.double()) < CLOSE.get(version, 1e-5)


def test_a_fused_block_of_another_width_is_refused() -> None:
    module = ConvNeXtBlock(24, 8).to(DEVICE)
    x = drawn(1, 2, 2, 24)
    with pytest.raises(BadInput, match="it has 24 channels; choose one of 32, 64, 128"):
        launches.convnext_block("fused", x, drawn(1, 24), BlockWeights.of(module), x)


def test_a_tensor_that_is_not_dense_is_refused() -> None:
    x = drawn(4, 6).T
    with pytest.raises(BadInput, match="not dense"):
        launches.Launch(None, (1,), 32, (x,))()


def test_bf16_is_rounded_as_pytorch_rounds_it() -> None:
    values = torch.randn(64)
    right = values.bfloat16().view(torch.int32)
    found = [int(simulated.pack_bf16(*values[place : place + 2].numpy())) for place in range(0, 64, 2)]
    assert found == right.tolist()


def test_a_lane_left_behind_ends_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    if not SIMULATED:
        pytest.skip("holds the simulator's instruction to the definition; a GPU has its own")
    monkeypatch.setattr(simulated, "SECONDS", 0.5)

    @cuda.jit
    def kernel(x):  # type: ignore[no-untyped-def]
        if cuda.threadIdx.x < 31:
            x[cuda.threadIdx.x] = shuffle_xor(x[cuda.threadIdx.x], 1)

    with pytest.raises(threading.BrokenBarrierError):
        kernel[1, 32](torch.zeros(32).numpy())


@pytest.mark.gpu(kernels=True)
def test_tritons_block_is_pytorchs() -> None:
    from study.convnext.kernels.block_triton import convnext_block

    module = ConvNeXtBlock(64, 8).to(DEVICE)
    double = ConvNeXtBlock(64, 8).to(DEVICE).double()
    double.load_state_dict(module.state_dict())
    x, shift, out = drawn(2, 5, 7, 64), drawn(2, 64), unwritten(torch.empty(2, 5, 7, 64))
    w = BlockWeights.of(module)
    # The interpreter multiplies BF16 as whole numbers: float32 there, as TF32 on a GPU.
    products = [m.weight.detach() for m in (module.expand, module.project)]
    vectors = (w.taps(), w.gain, w.bias, products[0], w.expand_bias, products[1], w.project_bias)
    convnext_block(x, shift + w.depthwise_bias, vectors, out, EPSILON)
    with torch.no_grad():
        right = double.body(x.permute(0, 3, 1, 2).double(), shift.double()).permute(0, 2, 3, 1)
    assert error(out - x, right - x.double()) < 5e-3
