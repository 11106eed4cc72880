"""The stand-in for CUDA graphs on a CPU finds what a replay without Python would get wrong."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from helpers.recordings import Recordings


@pytest.fixture
def pool() -> Recordings:
    return Recordings(torch.device("cpu"))


def test_a_capture_changes_nothing_and_a_replay_runs_no_python(pool: Recordings) -> None:
    total, state, settings = torch.zeros(2), torch.get_rng_state(), SimpleNamespace(factor=2.0, calls=0)

    def work() -> torch.Tensor:
        settings.calls += 1
        total.add_(torch.rand(2) * settings.factor)
        return total * 1

    found, replay = pool.capture(work)
    assert total.tolist() == [0.0, 0.0]
    assert torch.equal(state, torch.get_rng_state())
    assert found.isnan().all()
    settings.factor, version = 100.0, total._version
    torch.manual_seed(0)
    for _ in range(2):
        pool.replay(replay)
    torch.manual_seed(0)
    expected = sum(2 * torch.rand(2) for _ in range(2))
    torch.testing.assert_close(total, expected)
    assert torch.equal(total, found)
    assert settings.calls == 1
    assert total._version == version


def test_memory_that_was_freed_is_not_read(pool: Recordings) -> None:
    box = [torch.ones(3)]
    found, replay = pool.capture(lambda: box[0] * 2)
    pool.replay(replay)
    assert found.tolist() == [2.0] * 3
    box[0] = torch.ones(3)
    with pytest.raises(AssertionError, match="memory that has been freed"):
        pool.replay(replay)


def test_what_nobody_holds_another_replay_overwrites(pool: Recordings) -> None:
    x = torch.ones(3, requires_grad=True)
    left: list[torch.Tensor] = []
    _, first = pool.capture(lambda: left.append((2 * x).exp()))
    gradient, second = pool.capture(lambda: torch.autograd.grad(left[0].sum(), x)[0])
    kept, third = pool.capture(lambda: x * 5)
    left.clear()
    pool.replay(first)
    pool.replay(second)
    torch.testing.assert_close(gradient, 2 * torch.exp(2 * x.detach()))
    pool.replay(first)
    pool.replay(third)
    pool.replay(second)
    assert gradient.isnan().all()
    assert kept.tolist() == [5.0] * 3


def test_what_waits_cannot_be_captured(pool: Recordings) -> None:
    x = torch.ones(3)
    for waits in (lambda: x.sum().item(), lambda: x[x > 0], x.nonzero):
        with pytest.raises(RuntimeError, match="waits for the device"):
            pool.capture(waits)
    assert x.tolist() == [1.0] * 3
