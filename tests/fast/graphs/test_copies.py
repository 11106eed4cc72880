"""That a copy is its caller's own for as long as anything holds it, and its memory serves again afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from medddpm.fast.graphs.copies import Copies


class Owner:
    """Whose the tensors are."""


OWNER = Owner()


def sources(number: float = 0.0) -> list[Tensor]:
    return [torch.full((2, 3), number), torch.full((4, 2, 3, 3, 3), number).to(memory_format=torch.channels_last_3d)]


def refilled(given: list[Tensor], number: float) -> list[Tensor]:
    for t in given:
        t.fill_(number)
    return given


def places(tensors: list[Tensor]) -> list[int]:
    return [t.data_ptr() for t in tensors]


def test_memory_that_nothing_holds_serves_again() -> None:
    copies, given = Copies(), sources(1.0)
    first = copies(given, OWNER, None)
    known = places(first)
    assert [t.stride() for t in first] == [t.stride() for t in given]
    assert set(known).isdisjoint(places(given))
    del first
    second = copies(refilled(given, 2.0), OWNER, None)
    assert places(second) == known
    assert all((t == 2).all() for t in second)


HOLDERS: dict[str, Callable[[Tensor], Any]] = {
    "itself": lambda t: t,
    "a view": lambda t: t[0],
    "a detached one": lambda t: t.detach(),
    "its storage": lambda t: t.untyped_storage(),
    "an array": lambda t: t.numpy(),
    "a graph": lambda t: (torch.ones((), requires_grad=True) * t).sum(),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_is_held_stays_as_it_was(holder: str) -> None:
    copies, given = Copies(), sources(1.0)
    first = copies(given, OWNER, None)
    known = places(first)
    held = HOLDERS[holder](first[1])
    del first
    for number in (2.0, 3.0):
        second = copies(refilled(given, number), OWNER, None)
        assert second[0].data_ptr() == known[0]
        assert second[1].data_ptr() != known[1]
        assert all((t == number).all() for t in second)
        del second
    if holder == "its storage":
        assert set(torch.tensor([], dtype=torch.float32).set_(held).tolist()) == {1.0}
    elif holder == "a graph":
        held.backward()  # whose tensors are as they were saved
    else:
        assert (held == 1).all()


def test_a_copy_that_was_added_to_is_made_anew() -> None:
    copies, given = Copies(), sources(1.0)
    total = copies(given, OWNER, None)
    for number in (2.0, 3.0):
        for t, more in zip(total, copies(refilled(given, number), OWNER, None), strict=True):
            t += more
    assert all((t == 6).all() for t in total)


def test_memory_that_its_holder_gave_back_or_resized_is_not_written_to() -> None:
    copies, given = Copies(), sources(1.0)
    copies(given, OWNER, None)[0].untyped_storage().resize_(0)
    assert all((t == 2).all() for t in copies(refilled(given, 2.0), OWNER, None))


def test_another_s_tensors_and_another_stream_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.Size] = []
    own = torch.empty_like

    def empty_like(t: Tensor) -> Tensor:
        made.append(t.shape)
        return own(t)

    monkeypatch.setattr(torch, "empty_like", empty_like)
    copies, given, other = Copies(), sources(1.0), Owner()
    for _ in range(2):
        copies(given, OWNER, None)
    assert len(made) == 2
    copies(given, OWNER, "another")
    assert len(made) == 4
    (copy,) = copies([torch.full((7,), 2.0)], other, "another")
    assert copy.tolist() == [2.0] * 7
    del other
    assert all((t == 1).all() for t in copies(given, OWNER, "another"))
    assert len(made) == 7


def test_no_tensors_have_no_copies() -> None:
    assert Copies()([], OWNER, None) == []
