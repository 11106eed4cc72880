"""PyTorch's own tools: code is generated ahead, and what time decides is left to the measurement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor import compile_fx
from torch._inductor.runtime import benchmarking

from medddpm.measure.tools import CAPTURED, COMPILED, OPPONENTS, Tool

TOOLS = {tool.name: tool for tool in (*COMPILED, *OPPONENTS, *CAPTURED)}


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A stand-in for inductor, which takes long: it counts what it compiles, and how often that runs."""
    counts = {"compiled": 0, "run": 0, "timed": 0}

    def compile_(graph: nn.Module, _inputs: object, **_: object) -> Callable[..., Any]:
        counts["compiled"] += 1
        if counts["timed"]:
            benchmarking.benchmarker.benchmark_gpu(lambda: None)
            counts["timed"] += 1

        def run(*inputs: object) -> Any:
            counts["run"] += 1
            return graph.forward(*inputs)

        return run

    torch._dynamo.reset()
    monkeypatch.setattr(compile_fx, "compile_fx", compile_)
    return counts


def generated(tool: Tool) -> Callable[[], torch.Tensor]:
    network, x = nn.Linear(3, 2), torch.ones(1, 3)
    with tool.on(network) as called:

        def work() -> torch.Tensor:
            return called(x)

        tool.generate(work)
    return work


def test_code_is_generated_and_not_run(compiler: dict[str, int]) -> None:
    stand_in = compile_fx.compile_fx
    work = generated(TOOLS["compile"])
    assert compiler == {"compiled": 1, "run": 0, "timed": 0}
    assert compile_fx.compile_fx is stand_in
    work()
    work()
    assert compiler == {"compiled": 2, "run": 2, "timed": 0}, "the measurement compiles anew, out of PyTorch's caches"


def test_what_times_while_it_compiles_is_left_to_the_measurement(compiler: dict[str, int]) -> None:
    before = benchmarking.benchmarker.benchmark_gpu
    compiler["timed"] = 1
    generated(TOOLS["max-autotune"])
    assert compiler == {"compiled": 1, "run": 0, "timed": 1}, "it was stopped where it would have timed"
    assert benchmarking.benchmarker.benchmark_gpu == before


def test_of_what_is_not_compiled_nothing_runs_ahead(compiler: dict[str, int]) -> None:
    ran: list[int] = []
    TOOLS["cudnn.benchmark"].generate(lambda: ran.append(1))
    assert (ran, compiler["compiled"]) == ([], 0)
