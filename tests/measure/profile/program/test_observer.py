"""Which steps of a program are counted, timed and recorded, told by a recorder that only notes what it is told."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from medddpm.measure.profile.program import observer
from medddpm.measure.profile.program.observer import STEP, TIMED, TRACED, Observer, Order


class Notes:
    """Notes what is recorded; its clock counts its own readings."""

    def __init__(self, failing: str = "") -> None:
        self.said: list[str] = []
        self.clock, self.failing = 0, failing

    def now(self) -> int:
        self.clock += 1
        return self.clock

    def between(self, first: Any, last: Any) -> float:
        return float(last - first)

    def enter(self, stage: str) -> None:
        if stage == self.failing:
            raise RuntimeError("another profiler runs")
        self.said.append(stage)

    def finish(self) -> None:
        self.said.append("finished")

    def mark(self, name: str) -> Callable[[], None]:
        self.said.append(name)
        return lambda: self.said.append(f"/{name}")


class Optimizer:
    """Stands for one."""


def made(folder: Path, kind: str = "trace", rank: int = 0, **options: Any) -> tuple[Observer, Notes]:
    notes = Notes(options.pop("failing", ""))
    folder.mkdir(exist_ok=True)
    order = Order(folder, kind, options.pop("warmup", 1), **options)
    return Observer(order, notes, lambda: (rank, 1 + rank)), notes


def status(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "status.json").read_text()))


def train(followed: Observer, cycle: list[Any], cycles: int) -> int:
    """Calls optimizers, each after a backward pass; returns the calls that were made before the program was ended."""
    calls = 0
    with contextlib.suppress(SystemExit):
        for _ in range(cycles):
            for optimizer in cycle:
                before = followed.phase("backward")
                followed.phase(before)
                followed.phase("update")
                followed.phase("forward")
                calls += 1
                followed.stepped(optimizer, "the calls of Adam")
    return calls


STEP_OF_A_LOOP = ["forward", "/forward", "backward", "/backward", "forward", "/forward", "update", "/update", "forward"]


def test_a_step_lies_between_two_calls_and_the_program_is_ended_after_the_last(tmp_path: Path) -> None:
    followed, notes = made(tmp_path)
    calls = train(followed, [Optimizer()], 100)
    assert calls == 1 + followed.order.steps == 1 + 1 + TIMED + 1 + TRACED
    one = [STEP, *STEP_OF_A_LOOP, "/forward", f"/{STEP}"]
    assert notes.said == ["timed", "starting", "traced", *one, *one, "finished"]
    told = status(tmp_path)
    assert told["is_over"]
    assert (told["steps_seen"], told["by"], told["step_ms"]) == (calls - 1, "the calls of Adam", [1.0] * TIMED)
    assert told["loading_ms"] is None
    assert train(followed, [Optimizer()], 3) == 3, "a program that goes on is left alone"


def test_counters_are_of_one_step_after_the_warm_up(tmp_path: Path) -> None:
    followed, notes = made(tmp_path, "counters", warmup=3)
    assert train(followed, [Optimizer()], 100) == 1 + 3 + 1
    assert notes.said == ["counted", *STEP_OF_A_LOOP, "/forward", "finished"]


def test_a_program_may_run_to_its_end(tmp_path: Path) -> None:
    followed, notes = made(tmp_path, to_the_end=True)
    assert train(followed, [Optimizer()], 100) == 100
    assert notes.said.count("finished") == 1
    assert status(tmp_path)["is_over"]


@pytest.mark.parametrize("critics", [1, 2, 5])
@pytest.mark.parametrize("first", [True, False])
def test_a_step_of_a_gan_holds_updates_of_both_networks(critics: int, first: bool, tmp_path: Path) -> None:
    critic, generator = Optimizer(), Optimizer()
    cycle = [critic] * critics + [generator]
    followed, notes = made(tmp_path)
    train(followed, cycle if first else cycle[::-1], 100)
    traced = notes.said[notes.said.index(STEP) : notes.said.index(f"/{STEP}")]
    assert traced.count("update") == critics + 1


def test_many_optimizers_one_a_parameter_make_one_step(tmp_path: Path) -> None:
    followed, notes = made(tmp_path)
    assert train(followed, [Optimizer() for _ in range(100)], 100) == 1 + 100 * followed.order.steps
    assert notes.said[notes.said.index(STEP) : notes.said.index(f"/{STEP}")].count("update") == 100


def test_an_optimizer_that_is_no_longer_called_ends_no_step(tmp_path: Path) -> None:
    """As one that warmed something up."""
    followed, notes = made(tmp_path)
    warming, training = Optimizer(), Optimizer()
    train(followed, [warming], 3)
    train(followed, [training], 60)
    assert notes.said[-1] == "finished"


def test_an_update_that_a_scaler_leaves_out_counts_for_nothing(tmp_path: Path) -> None:
    followed, notes = made(tmp_path)
    optimizer = Optimizer()
    train(followed, [optimizer], 3)
    clock = notes.clock
    for _ in range(10):
        followed.skipped(optimizer)
    assert train(followed, [optimizer], 100) == followed.order.steps + 1 - 3
    assert status(tmp_path)["steps_seen"] == followed.order.steps
    assert clock + 10 < notes.clock, "each left-out update ends a step that was begun"
    assert status(tmp_path)["step_ms"] == [1.0] * TIMED, "a time holds an update that was left out"


def test_marks_tell_the_steps_and_calls_then_do_not(tmp_path: Path) -> None:
    followed, notes = made(tmp_path)
    optimizer, steps = Optimizer(), 0
    train(followed, [optimizer], 3)
    with contextlib.suppress(SystemExit):
        for _ in range(100):
            followed.told_by_marks("step()")
            assert followed.begin()
            assert not followed.begin(), "a mark within a mark"
            train(followed, [optimizer], 4)
            steps += 1
            followed.end()
    assert followed.is_over
    assert steps == followed.order.steps
    told = status(tmp_path)
    assert (told["by"], told["steps_seen"]) == ("step()", steps)
    assert len(told["loading_ms"]) == TIMED, "between two marks the batch is fetched"
    assert notes.said[notes.said.index(STEP) : notes.said.index(f"/{STEP}")].count("update") == 4


def test_a_step_that_an_error_ends_does_not_count(tmp_path: Path) -> None:
    followed, _ = made(tmp_path)
    followed.told_by_marks("step()")
    followed.begin()
    followed.end()
    followed.begin()
    followed.abandon()
    followed.write()
    assert status(tmp_path)["steps_seen"] == 1


def test_loading_is_a_phase_and_its_time_is_added_up(tmp_path: Path) -> None:
    followed, notes = made(tmp_path)
    optimizer = Optimizer()
    loaded = []
    with contextlib.suppress(SystemExit):
        for _ in range(100):
            loaded.append(followed.load(lambda: followed.load(lambda: "a loader of a loader")))
            followed.stepped(optimizer, "the calls of Adam")
    assert set(loaded) == {"a loader of a loader"}
    at = notes.said.index(STEP)
    assert notes.said[at : at + 5] == [STEP, "forward", "/forward", "load", "/load"]
    assert notes.said.count("load") == TRACED
    assert len(status(tmp_path)["loading_ms"]) == TIMED
    with pytest.raises(StopIteration):
        followed.load(lambda: next(iter([])))


def test_what_another_thread_does_is_no_phase(tmp_path: Path) -> None:
    followed, notes = made(tmp_path, "counters", warmup=0)
    followed.stepped(Optimizer(), "the calls of Adam")
    before = list(notes.said)
    thread = threading.Thread(target=lambda: (followed.phase("load"), followed.load(lambda: None)))
    thread.start()
    thread.join()
    assert notes.said == before


def test_one_process_is_recorded_and_the_others_of_its_training_end_with_it(tmp_path: Path) -> None:
    first, notes = made(tmp_path)
    train(first, [Optimizer()], 1)
    rank, quiet = made(tmp_path, rank=1)
    assert train(rank, [Optimizer()], 100) == 1 + rank.order.steps
    other, silent = made(tmp_path)
    assert train(other, [Optimizer()], 100) == 100, "a process that trains by itself is not ended for another's sake"
    assert quiet.said == silent.said == []
    train(first, [Optimizer()], 100)
    assert notes.said[-1] == "finished"


def test_no_more_steps_are_timed_than_the_time_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "TIMED_SECONDS", 0.0)
    followed, _ = made(tmp_path)
    assert train(followed, [Optimizer()], 100) == 1 + 1 + 1 + 1 + TRACED
    assert status(tmp_path)["step_ms"] == [1.0]


def test_a_recording_that_fails_is_told_and_the_program_is_not_harmed(tmp_path: Path) -> None:
    followed, _ = made(tmp_path, failing="starting")
    train(followed, [Optimizer()], 100)
    told = status(tmp_path)
    assert (told["is_over"], told["problem"]) == (False, "RuntimeError: another profiler runs")
