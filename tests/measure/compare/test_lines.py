"""The lines for a reader's own loop run as they are printed."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from medddpm.measure.compare.lines import lines
from medddpm.measure.compare.run import tools_of
from medddpm.measure.tools import Tool


def loss_fn(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(model(x), y)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modes that `torch.compile` is called with; it compiles nothing."""
    modes: list[str] = []
    monkeypatch.setattr(torch, "compile", lambda model, mode="default": modes.append(mode) or model)
    return modes


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv3d(4, 1, 3, padding=1))


def run(tool: Tool, measure: str, model: nn.Module, **known: object) -> dict[str, object]:
    before = torch.get_float32_matmul_precision()
    text = lines(tool, measure, "cpu", **{k: v for k, v in known.items() if k in ("unpacked", "returns_more")})
    try:
        names = {"model": model, **known}
        exec(compile(text, "lines.py", "exec"), names)
    finally:
        torch.set_float32_matmul_precision(before)
    return names


@pytest.mark.parametrize("tool", tools_of("step"), ids=lambda tool: tool.slug)
def test_a_loop_trains(tool: Tool, compiled: list[str]) -> None:
    model, batch = network(), (torch.randn(1, 2, 4, 4, 4), torch.randn(1, 1, 4, 4, 4))
    strides: list[tuple[int, ...]] = []
    model[0].register_forward_pre_hook(lambda _, inputs: strides.append(inputs[0].stride()))
    before = [p.detach().clone() for p in model.parameters()]
    made = run(tool, "step", model, loss_fn=loss_fn, loader=[batch, batch])
    assert all((p != b).any() for p, b in zip(model.parameters(), before, strict=True))
    assert torch.as_tensor(made["loss"]).ndim == 0
    assert compiled == ([tool.compiled] if tool.compiled else [])
    if tool.switches.channels_last and not tool.reader:
        assert strides[0] == batch[0].to(memory_format=torch.channels_last_3d).stride()
        assert model[0].weight.is_contiguous(memory_format=torch.channels_last_3d)


@pytest.mark.parametrize("tool", tools_of("forward"), ids=lambda tool: tool.slug)
def test_a_call_gives_the_networks_output(tool: Tool, compiled: list[str]) -> None:
    x = torch.randn(1, 2, 4, 4, 4)
    expected = network()(x).detach()
    output = run(tool, "forward", network(), inputs=(x,))["output"]
    assert isinstance(output, torch.Tensor)
    assert not output.requires_grad
    torch.testing.assert_close(output.float(), expected, rtol=0.05, atol=0.02)
    assert (output.dtype == torch.bfloat16) == (tool.halved or tool.autocast)


@pytest.mark.parametrize("slug", ["pytorch", "graphed-step"])
def test_a_batch_that_is_one_argument_and_a_loss_with_more(slug: str) -> None:
    (tool,) = [tool for tool in tools_of("step") if tool.slug == slug]

    def loss_of(model: nn.Module, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        output = model(batch["x"])
        return output.square().mean(), output

    loader = [{"x": torch.randn(1, 2, 4, 4, 4)}]
    made = run(tool, "step", network(), loss_fn=loss_of, loader=loader, unpacked=False, returns_more=True)
    assert torch.as_tensor(made["loss"]).ndim == 0


def test_on_a_gpu_the_lines_are_what_was_measured() -> None:
    """The update that every row had, and the search of cuDNN's algorithms."""
    for tool in tools_of("step"):
        text = lines(tool, "step", "cuda")
        compile(text, "lines.py", "exec")
        assert "fused=True" in text
        assert ("cudnn.benchmark = True" in text) == tool.search
        assert ('torch.autocast("cuda", torch.bfloat16)' in text) == tool.autocast
        assert ("accelerate(model)" in text) == bool(tool.reader)
