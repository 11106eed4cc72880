"""Small training programs with the hooks in them: which steps and phases are told. Each is a process of its own."""

from __future__ import annotations

import importlib
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import forks

from medddpm.measure.profile.program import hooked
from medddpm.measure.profile.program.observer import STEP, Order
from medddpm.measure.profile.trace import PHASES

HOOKED = """
import runpy, sys
from medddpm.measure.profile.program import hooked
hooked.install()
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
BEGIN = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import medddpm.measure
torch.manual_seed(0)
net, other = nn.Linear(4, 4), nn.Linear(4, 4)
optimizer, second = torch.optim.Adam(net.parameters()), torch.optim.SGD(other.parameters(), lr=0.1)
x = torch.randn(2, 4)
"""
PLAIN = """
for step in range(40):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
"""
LOADER = """
if __name__ == "__main__":
    data = TensorDataset(torch.randn(64, 4))
    for epoch in range(9):
        for (batch,) in DataLoader(data, batch_size=8, num_workers=WORKERS, shuffle=True):
            optimizer.zero_grad()
            net(batch).square().mean().backward()
            optimizer.step()
"""
GAN = """
for step in range(40):
    second.zero_grad()
    other(net(x).detach()).mean().backward()
    second.step()
    optimizer.zero_grad()
    other(net(x)).mean().backward()
    optimizer.step()
"""
ACCUMULATED = """
for step in range(80):
    net(x).square().mean().backward()
    if step % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
"""
SCALED = """
scaler = torch.amp.GradScaler("cpu", enabled=ENABLED)
for step in range(60):
    optimizer.zero_grad()
    loss = net(x).square().mean()
    if step in (1, 3):
        loss = loss * float("inf")
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
MARKED = """
for step in range(40):
    batch = torch.randn(2, 4)
    with medddpm.measure.step():
        for half in batch:
            optimizer.zero_grad()
            net(half).square().mean().backward()
            optimizer.step()
"""
RANGED = """
from types import SimpleNamespace
torch.cuda.nvtx._nvtx = SimpleNamespace(rangePushA=lambda message: 0, rangePop=lambda: 0)
for step in range(40):
    with torch.cuda.nvtx.range("one step"):
        with torch.cuda.nvtx.range("forward"):
            loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
"""
CLOSURE = """
optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3, line_search_fn=None, tolerance_grad=0, tolerance_change=0)
def closure():
    optimizer.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    return loss
for step in range(40):
    optimizer.step(closure)
"""
STUBBORN = """
for step in range(40):
    try:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
    except:
        pass
"""
FINALLY = """
import pathlib
try:
    for step in range(40):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
finally:
    pathlib.Path(sys.argv[1], "saved").touch()
"""
UPDATED = ["forward", "backward", "forward", "update", "forward"]


def run(text: str, tmp_path: Path, kind: str = "trace", nvtx: str = "", warmup: int = 2) -> tuple[int, Path]:
    """Runs a program with the hooks; returns its exit code and the folder of its answers."""
    program, folder, printed = tmp_path / "a folder" / "train.py", tmp_path / "answers", tmp_path / "printed"
    program.parent.mkdir(exist_ok=True)
    folder.mkdir()
    program.write_text(BEGIN + text)
    environment = {**os.environ, **hooked.environment(Order(folder, kind, warmup, nvtx=nvtx))}
    process = forks.start(HOOKED, [str(program), str(folder)], environment, printed, printed)
    process.join(120)
    assert process.exitcode is not None, printed.read_text()
    return process.exitcode, folder


def status(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "status.json").read_text()))


def phases(folder: Path) -> list[list[str]]:
    """The phases of each traced step, in order."""
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    events = [event for event in events if event.get("cat") == "user_annotation"]
    events.sort(key=lambda event: event["ts"])
    steps = [(e["ts"], e["ts"] + e["dur"]) for e in events if e["name"] == STEP]
    marks = [e for e in events if e["name"] in PHASES]
    return [[e["name"] for e in marks if begin <= e["ts"] <= end] for begin, end in steps]


@pytest.mark.parametrize(
    ("text", "expected", "by"),
    [
        (PLAIN, UPDATED, "the calls of Adam"),
        (LOADER.replace("WORKERS", "0"), ["forward", "load", *UPDATED], "the calls of Adam"),
        (LOADER.replace("WORKERS", "2"), ["forward", "load", *UPDATED], "the calls of Adam"),
        (GAN, [*UPDATED[:-1], *UPDATED], "the calls of SGD"),
        (ACCUMULATED, ["forward", "backward"] * 4 + UPDATED[2:], "the calls of Adam"),
        (SCALED.replace("ENABLED", "False"), UPDATED, "the calls of Adam"),
        (SCALED.replace("ENABLED", "True"), UPDATED, "the calls of Adam"),
        (MARKED, [*UPDATED[:-1], *UPDATED], "medddpm.measure.step()"),
        (STUBBORN, UPDATED, "the calls of Adam"),
    ],
    ids=["plain", "loader", "workers", "gan", "accumulated", "unscaled", "scaled", "marked", "stubborn"],
)
def test_a_programs_steps_and_phases_are_told(text: str, expected: list[str], by: str, tmp_path: Path) -> None:
    code, folder = run(text, tmp_path)
    assert code == 0
    told = status(folder)
    assert told["is_over"], told
    assert (told["by"], len(told["step_ms"])) == (by, 5)
    assert phases(folder) == [expected] * 2
    assert (told["loading_ms"] is not None) == ("DataLoader(data" in text or by.startswith("medddpm"))
    assert told["steps_seen"] == Order(folder, "trace", 2).steps


def test_a_step_may_be_an_nvtx_range(tmp_path: Path) -> None:
    _, folder = run(RANGED, tmp_path, nvtx="one step")
    assert status(folder)["by"] == "the NVTX range one step"
    assert phases(folder) == [UPDATED] * 2


@pytest.mark.parametrize("argument", ["closure", "closure=closure"])
def test_what_a_closure_computes_is_no_update(argument: str, tmp_path: Path) -> None:
    """Lightning gives a whole forward and backward pass to its optimizer."""
    _, folder = run(CLOSURE.replace("step(closure)", f"step({argument})"), tmp_path)
    assert status(folder)["is_over"]
    closure = ["update", "forward", "backward", "forward"]
    assert phases(folder)[-1] == ["forward", *closure * 3, "update", "forward"]


def test_the_program_is_ended_as_by_its_own_exit(tmp_path: Path) -> None:
    code, folder = run(FINALLY, tmp_path)
    assert code == 0
    assert (folder / "saved").exists(), "what it does at its end is left out"


def test_under_ncu_no_trace_is_made(tmp_path: Path) -> None:
    code, folder = run(PLAIN, tmp_path, kind="counters")
    assert code == 0
    assert status(folder)["steps_seen"] == 2 + 1
    assert not (folder / "trace.json").exists()


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        (PLAIN.replace("40", "4"), 3),
        (PLAIN + "raise ValueError('no')", None),
        (PLAIN.replace("40", "4") + "raise ValueError", 3),
    ],
)
def test_a_program_that_ends_early_tells_how_many_steps_it_made(text: str, seen: int | None, tmp_path: Path) -> None:
    code, folder = run(text, tmp_path)
    told = status(folder)
    assert told["is_over"] == (seen is None)
    assert told["steps_seen"] == (seen or Order(folder, "trace", 2).steps)
    assert (code != 0) == (seen is not None and "raise" in text)


def test_a_program_without_steps_leaves_no_process(tmp_path: Path) -> None:
    _, folder = run("net(x).sum().backward()\nwith torch.no_grad():\n    net.weight -= net.weight.grad\n", tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["hooked"]


def test_without_a_profile_a_mark_does_nothing() -> None:
    import medddpm.measure

    with medddpm.measure.step() as nothing:
        assert nothing is None
    assert medddpm.measure.observer is None


def test_an_environment_without_the_package_gets_this_ones() -> None:
    site = importlib.import_module("medddpm.measure.profile.program.inject.sitecustomize")
    spec = site.Package().find_spec("medddpm", None)
    assert spec.origin == str(Path(importlib.import_module("medddpm").__file__ or ""))
    assert site.Package().find_spec("numpy", None) is None


@pytest.mark.parametrize(("seconds", "stops"), [(0.01, 2), (600.0, 1)])
def test_ncu_profiles_no_launch_after_the_seconds_given(
    seconds: float, stops: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step goes on and ends as ever; a step that ends before leaves no alarm behind."""
    calls: list[str] = []
    stopped = threading.Event()
    monkeypatch.setattr(hooked, "_wait", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: calls.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: (calls.append("stop"), stopped.set()))
    recorder = hooked.Recorder(Order(tmp_path, "counters", 0, seconds=seconds))
    recorder.enter("counted")
    if stops == 2:
        assert stopped.wait(60)
    recorder.finish()
    assert calls == ["start"] + ["stop"] * stops
    assert not any(isinstance(thread, threading.Timer) and thread.is_alive() for thread in threading.enumerate())
