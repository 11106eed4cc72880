"""The parts of a step's time: the arithmetic of spans, and a recorded training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from medddpm.data.volumes import VolumeFolder
from medddpm.training.config import TrainConfig
from medddpm.training.reports import waits
from medddpm.training.run import train

CONFIG = TrainConfig(image_size=8, accumulation=1, model_channels=32, channel_mult=(1, 2), save_every=0, sample_every=0)


def event(category: str, name: str, begin: float, end: float) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": begin, "dur": end - begin}


@pytest.mark.parametrize(
    ("spans", "holes", "left"),
    [
        ([(0, 10)], [], [(0, 10)]),
        ([(0, 10)], [(2, 3), (5, 7)], [(0, 2), (3, 5), (7, 10)]),
        ([(0, 10)], [(-1, 4), (9, 12)], [(4, 9)]),
        ([(0, 2), (4, 6), (8, 9)], [(1, 5)], [(0, 1), (5, 6), (8, 9)]),
        ([(0, 2)], [(0, 2)], []),
    ],
)
def test_what_remains_of_spans(spans: list, holes: list, left: list) -> None:
    assert waits.without(spans, holes) == left


def test_spans_that_touch_are_one() -> None:
    assert waits.union([(4, 6), (0, 2), (2, 3), (1, 2.5)]) == [(0, 3), (4, 6)]


def test_each_moment_of_a_gpus_time_counts_once() -> None:
    """100 µs: 40 of kernels, 5 of a copy alone, 25 without work while the host waits for a batch, 30 for the rest."""
    events = [
        event("user_annotation", "load", 0, 30),
        event("user_annotation", "update", 30, 60),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 25, 40),
        event("kernel", "a", 30, 50),
        event("kernel", "b", 45, 60),
        event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 60, 70),
        event("cpu_op", "aten::add", 0, 100),
        event("user_annotation", "update", 95, 100),
        {"ph": "i", "name": "mark", "ts": 5},
    ]
    assert waits.shares(events, on_gpu=True) == pytest.approx(
        {"device": 40e-6, "copy": 5e-6, "loader": 25e-6, "host": 30e-6}
    )
    on_host = [e for e in events if e.get("cat") == "user_annotation"]
    assert waits.shares(on_host, on_gpu=False) == pytest.approx(
        {"device": 35e-6, "copy": 0.0, "loader": 30e-6, "host": 35e-6}
    )
    assert sum(waits.shares([], on_gpu=True).values()) == 0


def test_a_line_says_what_was_found() -> None:
    seconds = {"device": 0.9, "copy": 0.05, "loader": 0.05, "host": 0.0}
    assert waits.sentence(seconds, 10) == (
        "a step takes 100.00 ms: "
        "device 90.00 ms (90.0%), copy 5.00 ms (5.0%), loader 5.00 ms (5.0%), host 0.00 ms (0.0%)"
    )


@pytest.fixture
def volumes(head_folder: Path, monkeypatch: pytest.MonkeyPatch) -> VolumeFolder:
    """Three; of a training on them two steps are recorded, soon after its first epoch."""
    monkeypatch.setattr(waits, "STEPS", 2)
    monkeypatch.setattr(waits, "WARMUP", 1)
    return VolumeFolder(head_folder, (8, 8, 8))


def test_a_training_says_it_once_after_its_first_epoch_and_trains_the_same(
    volumes: VolumeFolder, tmp_path: Path, monkeypatch, caplog
) -> None:
    plain = train(CONFIG, volumes, tmp_path / "plain", 6, device="cpu", progress=False)
    recorded = []
    shares = waits.shares
    monkeypatch.setattr(waits, "shares", lambda events, on_gpu: recorded.append(shares(events, on_gpu)) or recorded[-1])
    with caplog.at_level("INFO", "medddpm"):
        watched = train(CONFIG, volumes, tmp_path / "watched", 6, device="cpu", progress=False, profile=True)
    assert torch.equal(plain, watched)
    assert caplog.text.count("a step takes") == 1
    assert recorded[0]["device"] > 0
    assert recorded[0]["loader"] > 0
    assert recorded[0]["copy"] == 0


@pytest.mark.long
def test_a_training_too_short_to_be_recorded_says_so_and_how_long_it_takes(
    volumes: VolumeFolder, tmp_path: Path, caplog
) -> None:
    """Of three volumes an epoch is three steps."""
    with caplog.at_level("INFO", "medddpm"):
        train(CONFIG, volumes, tmp_path, 4, device="cpu", progress=False, profile=True)
        (line,) = [record.getMessage() for record in caplog.records]
        assert line == (
            "--profile: no profile: 2 steps are recorded once 3 more are made, and this run ends at step 4; "
            "give --steps 5 or more"
        )
        caplog.clear()
        train(CONFIG, volumes, tmp_path, 8, device="cpu", progress=False, profile=True)
        assert "this run ends at step 8; give --steps 9 or more" in caplog.text, "it went on from step 4"
        caplog.clear()
        train(CONFIG, volumes, tmp_path, 13, device="cpu", progress=False, profile=True)
        assert caplog.text.count("a step takes") == 1
        assert "--profile" not in caplog.text
