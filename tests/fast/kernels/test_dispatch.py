"""Which tensors the kernels serve, and what all operators have in common."""

from __future__ import annotations

import pytest
import torch
from helpers.gpu import DEVICE
from helpers.kernels import BF16, F64, FP16, FP32, ODD, Widths, volume
from torch import Tensor

from medddpm.fast.kernels import dispatch
from medddpm.fast.kernels.add import add
from medddpm.fast.kernels.conv3d import conv3d
from medddpm.fast.kernels.norm import NormArguments, group_norm, group_norm_and_inputs
from medddpm.fast.kernels.upsample import upsample


def test_takes_channels_last_volumes_of_one_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    x = volume(2, 8, 3, 3, 3, dtype=BF16)
    assert not dispatch.takes(x)  # a CPU tensor
    monkeypatch.setattr(dispatch, "serves", lambda device: True)
    assert dispatch.takes(x, x[:1], volume(2, 4, 3, 3, 3, dtype=BF16))
    assert not dispatch.takes(x, x.float())
    assert not any(dispatch.takes(a) for a in (x.contiguous(), x[:0], x[:, :4], x.double(), x[0]))


@pytest.mark.parametrize(("triton", "capability"), [(True, (8, 0)), (True, (7, 5)), (False, (9, 0))])
def test_serves_bf16_cards_with_triton(monkeypatch: pytest.MonkeyPatch, triton: bool, capability: Widths) -> None:
    monkeypatch.setattr(dispatch, "TRITON", triton)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    assert dispatch._serves.__wrapped__(torch.device("cuda:0")) == (triton and capability >= (8, 0))


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32, F64])
def test_results_have_the_inputs_dtype(dtype: torch.dtype) -> None:
    x = volume(2, 32, 3, 7, 3, dtype=dtype)
    convolution = conv3d(x, torch.randn(2, 32, 1, 1, 1, dtype=dtype), torch.ones(2))
    results = convolution, upsample(x), add(x, x, bias=torch.ones(32)), group_norm(NormArguments(x, 32))
    assert {a.dtype for a in results} == {dtype}


@pytest.mark.gpu
def test_a_graph_replays_the_same_bits() -> None:
    """Every kernel in one captured forward and backward."""
    image = volume(2, 3, *ODD, dtype=BF16, device=DEVICE)
    shapes = (64, 3, 3, 3, 3), (1, 128, 3, 3, 3), (128, 128), (128,), (128,), (2, 128), (64,)
    leaves = [(0.3 * torch.randn(s, device=DEVICE)).to(BF16 if i < 3 else FP32) for i, s in enumerate(shapes)]
    inwards, outwards, product, weight, bias, shift, half = (a.requires_grad_() for a in leaves)

    def step() -> list[Tensor]:
        x = conv3d(image, inwards, half, 1, 1)
        y = group_norm(NormArguments(x, x.shape[1], half, shift=half, activation="leaky_relu"))
        y, x, other = group_norm_and_inputs(NormArguments(x, 32, weight, bias, other=y, shift=shift))
        h = upsample(add(y, x, other, weight=product, bias=bias))
        y = conv3d(add(h, h, bias=bias), outwards, half[:1], 1, 1)
        return [y, *torch.autograd.grad(y.float().square().mean(), leaves)]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    image.copy_(torch.randn_like(image))  # a replay must read what is new
    graph.replay()
    assert all(torch.equal(a, b) and a.any() for a, b in zip(captured, step(), strict=True))
