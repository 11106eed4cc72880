"""Times of work, on a clock that settles, and distances of results."""

from __future__ import annotations

import itertools

import pytest
import torch

from medddpm.measure import timing

CPU = torch.device("cpu")


def test_distance_is_relative_over_all_tensors() -> None:
    theirs = [torch.tensor([3.0]), torch.tensor([[4.0, 0.0]])]
    ours = [torch.tensor([3.0]), torch.tensor([[4.0, 0.5]])]
    assert timing.distance(ours, theirs) == pytest.approx(0.1)
    assert timing.distance(theirs, theirs) == 0


def test_every_sample_has_a_time() -> None:
    runs: list[int] = []

    def work() -> torch.Tensor:
        runs.append(len(runs))
        return torch.tensor(float(len(runs)))

    times, last = timing.timed(work, 5, CPU)
    assert len(times) == len(runs) == 5
    assert min(times) > 0
    assert float(last) == 5


def test_a_gpu_is_timed_once_its_clocks_have_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []

    def timed(work: object, samples: int, device: torch.device) -> tuple[list[float], None]:
        ran.append(samples)
        return [40.0] * samples, None

    monkeypatch.setattr(timing, "timed", timed)
    assert timing.settle(torch.rand, torch.device("cuda")) == 75, "of 40 ms each, three seconds"
    assert ran == [3, 75]
    assert timing.settle(torch.rand, torch.device("cpu")) == 1
    assert ran == [3, 75]


@pytest.mark.parametrize(("ms", "runs"), [(4.0, 20), (400.0, 7), (9000.0, 3)])
def test_the_hosts_time_begins_on_an_idle_gpu(ms: float, runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    clock = itertools.count()
    monkeypatch.setattr(timing, "wait", lambda device: done.append("wait"))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: float(next(clock)))
    assert timing.launching(lambda: done.append("work"), ms, torch.device("cuda")) == 1000
    assert done == ["wait", "work"] * runs
    assert timing.launching(lambda: done.append("work"), ms, CPU) is None
