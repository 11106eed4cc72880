"""What a graphed pass looks at before it is captured."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from medddpm.fast.graphs.graphed_pass import leaves


class Keeps(torch.autograd.Function):
    """Keeps something by the name that PyTorch's own node has for a leaf."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, variable: list[object]) -> Tensor:
        (ctx.variable,) = variable
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return 2 * gradients[0], None


@pytest.mark.parametrize("variable", ["a word", torch.ones(1), nn.Parameter(torch.ones(1))], ids=type)
def test_a_function_s_own_variable_is_no_leaf(variable: object) -> None:
    weight, bias = (nn.Parameter(torch.ones(1)) for _ in range(2))
    out: Tensor = Keeps.apply(weight * 3, [variable]) + bias  # type: ignore[no-untyped-call]
    assert {id(t) for t in leaves([out])} == {id(weight), id(bias)}
