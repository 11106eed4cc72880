"""Tensors in nested arguments: found, changed and told apart by everything but their contents."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch
from torch import Tensor

from medddpm.runtime import nested

Pair = namedtuple("Pair", "a b")


def value() -> Any:
    tensors = [torch.full((2,), float(i)) for i in range(5)]
    return (
        [tensors[0], 3],
        Pair(tensors[1], "x"),
        OrderedDict(k=tensors[2], n=None),
        {"t": (tensors[3], [tensors[4]])},
    )


def test_tensors_are_found_in_order_and_changed_in_place_of_the_others() -> None:
    given = value()
    assert [int(t[0]) for t in nested.tensors(given)] == [0, 1, 2, 3, 4]
    changed = nested.mapped(given, lambda t: t + 10)
    assert [int(t[0]) for t in nested.tensors(changed)] == [10, 11, 12, 13, 14]
    assert [int(t[0]) for t in nested.tensors(given)] == [0, 1, 2, 3, 4]
    assert [type(part) for part in changed] == [list, Pair, OrderedDict, dict]
    assert (changed[0][1], changed[1].b, changed[2]["n"]) == (3, "x", None)
    again = nested.filled(given, nested.tensors(changed))
    assert all(a is b for a, b in zip(nested.tensors(again), nested.tensors(changed), strict=True))


def test_a_shape_is_everything_but_contents() -> None:
    same = nested.shape_of(value())
    assert same == nested.shape_of(nested.mapped(value(), lambda t: t * 2))
    assert hash(same) == hash(nested.shape_of(value()))
    base = torch.zeros(2, 3)
    others = [
        base.double(),
        base.t().contiguous().t(),
        base[:1],
        base.clone().requires_grad_(),
        [base],
        (base, 1),
        None,
        1,
    ]
    shapes = [nested.shape_of(base), *map(nested.shape_of, others), nested.shape_of(1.0), nested.shape_of(True)]
    assert len(set(shapes)) == len(shapes)


def test_what_cannot_be_told_apart_is_refused() -> None:
    class Mine(Tensor):
        pass

    for odd, name in ((torch.zeros(1).as_subclass(Mine), "Mine"), (object(), "object"), ({"a": {1, 2}}, "set")):
        with pytest.raises(TypeError, match=name):
            nested.shape_of(odd)
