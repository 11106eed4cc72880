"""Tensors in nested arguments: found, changed and told apart by everything but their contents."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch
from torch import Tensor

from medddpm.fast.graphs import nested

Pair = namedtuple("Pair", "a b")


@dataclasses.dataclass
class Both:
    t: Tensor
    n: int = 1


def value() -> Any:
    tensors = [torch.full((2,), float(i)) for i in range(6)]
    return (
        [tensors[0], 3],
        Pair(tensors[1], "x"),
        OrderedDict(k=tensors[2], n=None),
        {"t": (tensors[3], [tensors[4]])},
        Both(tensors[5]),
    )


def test_tensors_are_found_in_order_and_changed_in_place_of_the_others() -> None:
    given = value()
    assert [int(t[0]) for t in nested.tensors(given)] == [0, 1, 2, 3, 4, 5]
    changed = nested.mapped(given, lambda t: t + 10)
    assert [int(t[0]) for t in nested.tensors(changed)] == [10, 11, 12, 13, 14, 15]
    assert [int(t[0]) for t in nested.tensors(given)] == [0, 1, 2, 3, 4, 5]
    assert [type(part) for part in changed] == [list, Pair, OrderedDict, dict, Both]
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
        Both(base),
        Both(base, 2),
        [base],
        (base, 1),
        None,
        1,
    ]
    others += (base, base), (torch.zeros_like(base), base.clone()), 0.0, -0.0
    shapes = [nested.shape_of(base), *map(nested.shape_of, others), nested.shape_of(1.0), nested.shape_of(True)]
    assert len(set(shapes)) == len(shapes)


def test_what_cannot_be_told_apart_is_refused() -> None:
    class Mine(Tensor):
        pass

    for odd, name in ((torch.zeros(1).as_subclass(Mine), "Mine"), (object(), "object"), ({"a": {1, 2}}, "set")):
        with pytest.raises(TypeError, match=name):
            nested.shape_of(odd)


def test_what_is_written_into_a_copy_comes_back() -> None:
    given, new = value(), torch.full((2,), 7.0)
    own = list(nested.tensors(given))
    lent = nested.Lent(given, lambda t: t + 10)
    listed, _, ordered, inner, both = lent.copy
    listed[0].mul_(2)
    listed.insert(0, inner["t"])
    del ordered["n"]
    inner["t"][1].clear()
    inner["new"] = [new]
    both.t = new
    lent.returned(lambda t: t - 1)
    assert given[0][0][0] is own[3]
    assert given[0][1] is own[0]
    assert own[0].tolist() == [20.0, 20.0]  # 10 more, and twice
    assert [t.tolist() for t in own[1:]] == [[float(i)] * 2 for i in range(1, 6)]
    assert list(given[2]) == ["k"]
    assert given[3]["t"] == (own[3], [])
    assert given[3]["new"][0].tolist() == given[4].t.tolist() == [6.0, 6.0]
