"""The report's operators and the network made of them, held to PyTorch in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from study.convnext import forward, operators
from study.convnext.model import AtDepthOne, ConvNeXtBlock, ConvNeXtUNet
from study.convnext.operators import OPERATORS, Array, OperatorTimer

DRAW = np.random.default_rng(0)


def drawn(*shape: int) -> Array:
    return DRAW.standard_normal(shape, dtype=np.float32)


def wide(array: Array) -> Tensor:
    """(N, H, W, C) float32 as (N, C, H, W) float64."""
    return torch.from_numpy(array).double().permute(0, 3, 1, 2)


def close(found: Array, right: Tensor) -> None:
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, right.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("groups", [1, 5])
def test_a_padded_convolution_is_pytorchs(stride: int, groups: int) -> None:
    outputs = 5 if groups > 1 else 4
    x, weight, bias = drawn(2, 6, 7, 5), drawn(3, 3, 5 // groups, outputs), drawn(outputs)
    found = operators.conv2d(operators.conv2d_pad(x, 1), weight, bias, stride)
    filters = torch.from_numpy(weight).double().permute(3, 2, 0, 1)
    right = functional.conv2d(wide(x), filters, torch.from_numpy(bias).double(), stride, 1, groups=groups)
    close(found, right.permute(0, 2, 3, 1))


def test_the_other_operators_are_pytorchs() -> None:
    x, gain, bias = drawn(2, 3, 4, 6), drawn(6), drawn(6)
    right = torch.from_numpy(x).double()
    for name, definition in (("relu", torch.relu), ("gelu", functional.gelu), ("sigmoid", torch.sigmoid)):
        close(OPERATORS[name](x), definition(right))
    close(operators.softmax(x), right.softmax(-1))
    normed = functional.layer_norm(right, (6,), *(torch.from_numpy(a).double() for a in (gain, bias)), 1e-6)
    close(operators.layer_norm(x, gain, bias), normed)
    close(operators.upsample(x), functional.interpolate(wide(x), scale_factor=2).permute(0, 2, 3, 1))
    rows, weight = drawn(3, 6), drawn(6, 4)
    product = torch.from_numpy(rows).double() @ torch.from_numpy(weight).double()
    close(operators.linear(rows, weight, drawn(4) * 0), product)
    close(operators.element_matmul(x, x), right * right)
    images = np.abs(x) % 1
    there = operators.normalize_to_neg_one_to_one(images)
    assert there.min() >= -1
    close(operators.unnormalize_to_zero_to_one(there), torch.from_numpy(images))
    table = drawn(10)
    assert operators.extract(table, np.array([3, 7])).tolist() == table[[3, 7]].reshape(2, 1, 1, 1).tolist()
    kept = operators.identity(x)
    assert (kept == x).all()
    assert kept is not x


def test_the_network_of_operators_is_the_network() -> None:
    torch.manual_seed(0)
    network = ConvNeXtUNet(widths=(16, 32, 32)).eval()
    x, t = drawn(2, 8, 12, 3), np.array([3, 70])
    call = OperatorTimer()
    found = forward.forward(network, x, t, call)
    with torch.no_grad():
        right = network.double()(wide(x), torch.from_numpy(t))
        volumes = AtDepthOne(network)(wide(x)[:, :, None], torch.from_numpy(t))
    close(found, right.permute(0, 2, 3, 1))
    assert torch.equal(volumes[:, :, 0], right)
    blocks = sum(isinstance(module, ConvNeXtBlock) for module in network.modules())
    assert blocks == call.calls["gelu"] == 5
    assert call.calls["conv2d"] == 3 * blocks + 6
    assert call.calls["layer_norm"] == blocks + 1
    assert call.calls["softmax"] == 0
    assert all((call.seconds[name] > 0) == (count > 0) for name, count in call.calls.items())


def test_sampling_calls_every_row_of_the_table_but_those_of_no_time() -> None:
    torch.manual_seed(0)
    call = OperatorTimer()
    images = forward.sample(ConvNeXtUNet(widths=(16, 16)), drawn(1, 4, 4, 3), 2, call)
    assert images.shape == (1, 4, 4, 3)
    assert np.isfinite(images).all()
    idle = {name for name, count in call.calls.items() if not count}
    assert idle == {"softmax", "normalize_to_neg_one_to_one"}  # 0 s in the report too


def test_a_replaced_operator_is_called_in_its_place() -> None:
    call = OperatorTimer(relu=lambda x: x + 1)
    assert call("relu", np.float32(1)) == 2
    assert call.calls["relu"] == 1
