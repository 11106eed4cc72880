"""One row: its times, and its errors against float32, whatever the network draws."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import recordings

from medddpm.measure.compare import worker
from medddpm.measure.subject import Subject

Write = Callable[..., Path]


@pytest.fixture
def measure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any] | str]:
    """Measures a row of a file; returns its result, or the line that says why there is none."""

    def measure(path: Path, tool: str, measure: str = "step") -> dict[str, Any] | str:
        words = ["--file", str(path), "--tool", tool, "--measure", measure, "--samples", "2", "--device", "cpu"]
        if worker.main([*words, "--folder", str(tmp_path)]):
            return capsys.readouterr().err.strip().splitlines()[-1].removeprefix(worker.MARK)
        return json.loads((tmp_path / f"{tool}.json").read_text())

    return measure


@pytest.mark.parametrize("tool", ["pytorch", "channels-last", "accelerate", "graphed-step"])
def test_a_step_has_times_and_the_errors_of_rounding(tool: str, write: Write, measure, monkeypatch) -> None:
    """Dropout is off while errors are measured, and statistics of norms begin anew: both would hide rounding."""
    recordings.stand_in(monkeypatch)
    recordings.drawing_on_the_device(monkeypatch)
    sgd = functools.partial(torch.optim.SGD, lr=0.0, fused=True)  # Adam's update on a CPU cannot be captured
    monkeypatch.setattr(Subject, "_optimizer", lambda subject: sgd(subject.model.parameters()))
    path = write()
    known = measure(path, "reference")
    assert 1e-4 < known["autocast"]["rel_error_output"] < 0.1
    assert 1e-4 < known["autocast"]["rel_error_grad"] < 0.1
    row = measure(path, tool)
    assert isinstance(row, dict), row
    assert len(row["ms"]) == 2
    assert min(row["ms"]) > 0
    assert row["rel_error_output"] < 1e-5
    assert row["rel_error_grad"] < 1e-5
    assert ("fast path" in row.get("acceleration", "")) == (tool in ("accelerate", "graphed-step"))


def test_a_forward_pass_has_the_error_of_its_outputs(write: Write, measure) -> None:
    path = write(("model(x), y", "model(x.sqrt().nan_to_num(1.0)), y"))
    assert "rel_error_grad" not in measure(path, "reference", "forward")["autocast"]
    rough = measure(path, "bf16-weights", "forward")
    assert 1e-4 < rough["rel_error_output"] < 0.1
    assert measure(path, "pytorch", "forward")["rel_error_output"] == 0


UNJUDGED = {
    "dropout in a forward": (("self.drop(self.norm", "functional.dropout(self.norm"),
                             "the network draws random numbers outside of dropout layers: two runs differ by"),
    "a loss that is never the same": (("loss_fn(model, x, y):",
                                       "loss_fn(model, x, y):\n        torch.seed(); y = torch.rand_like(y)"),
                                      "two float32 runs from one seed differ by"),
    "shapes that change": (("loss_fn(model, x, y):",
                            "loss_fn(model, x, y):\n        at.append(0); x, y = x[..., : len(at)], y[..., : len(at)]\n"
                            "        # it grows"),
                           "two float32 runs from one seed differ by"),
    "not finite": (("functional.mse_loss(model(x)", "(model(x) * 0).abs().sqrt().sum() + functional.mse_loss(model(x)"),
                   "float32's own outputs or gradients are not finite"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "why"), UNJUDGED.values(), ids=UNJUDGED)
def test_errors_that_would_mean_nothing_are_left_out(change, why, write: Write, measure) -> None:
    path = write(change, ("def build():", "def build():\n    at = [0]"))
    known, row = measure(path, "reference"), measure(path, "pytorch")
    assert isinstance(known, dict), known
    assert "autocast" not in known
    assert known["unjudged"].startswith(why)
    assert row["unjudged"] == known["unjudged"]
    assert len(row["ms"]) == 2


def test_weights_that_each_process_draws_anew_have_no_errors(write: Write, measure) -> None:
    path = write(("    return Toy()", "    torch.seed()\n    return Toy()"))
    assert "unjudged" not in measure(path, "reference")
    assert measure(path, "pytorch")["unjudged"].startswith("each process builds other weights or another batch: seed")


def test_an_output_of_zeros_has_no_relative_error(write: Write, measure) -> None:
    path = write(("        self.last = nn.Conv3d(4, 1, 3, padding=1)",
                  "        self.last = nn.Conv3d(4, 1, 3, padding=1)\n        nn.init.zeros_(self.last.weight)\n"
                  "        nn.init.zeros_(self.last.bias)"))  # fmt: skip
    assert list(measure(path, "reference")["autocast"]) == ["rel_error_grad"]


FAILURES = {
    "the loss": ((("mse_loss(model(x), y)", "mse_loss(model(x), y[:, :, 1:5])"),), "step",
                 "toy_step.py:19: loss_fn raises"),
    "another network": ((("    return Toy()", "    other = Toy()\n    return Toy()"),
                         ("mse_loss(model(x)", "mse_loss(other(x)")), "step",
                        "the loss reaches no parameter of the network that takes a gradient; compute it"),
    "parts only": ((("mse_loss(model(x)", "mse_loss(model.last(model.first(x))"),), "forward",
                   "loss_fn calls only parts of the network, never the network; call it in loss_fn"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "what", "said"), FAILURES.values(), ids=FAILURES)
def test_what_is_wrong_with_a_step_is_one_line(changes, what: str, said: str, write: Write, measure) -> None:
    assert said in measure(write(*changes), "reference", what)


def test_parts_of_a_network_have_errors_of_gradients_alone(write: Write, measure) -> None:
    path = write(("mse_loss(model(x)", "mse_loss(model.last(model.first(x))"))
    assert list(measure(path, "reference")["autocast"]) == ["rel_error_grad"]
    assert "rel_error_output" not in measure(path, "pytorch")


def test_a_tool_that_breaks_says_so_in_one_line(write: Write, measure, monkeypatch) -> None:
    def broken(*_: object, **_options: object) -> None:
        raise torch.OutOfMemoryError("out\nof memory")

    monkeypatch.setattr(worker, "repeated", broken)
    assert measure(write(), "pytorch") == "out of memory: build a smaller batch"
