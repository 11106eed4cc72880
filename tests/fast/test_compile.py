"""`torch.compile` over an accelerated network, and `torch.export`: one graph, the same outputs and gradients."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from helpers.gpu import DEVICE
from helpers.networks import alive, block, distance, farthest, inputs, made, passed, volume
from torch import Tensor, nn

from medddpm.fast.forward import Forward
from medddpm.fast.kernels import dispatch
from medddpm.fast.patch import accelerate, restore
from medddpm.unet import UNet3D

OURS = "UNet3D"
SLOW = [
    pytest.param(name, marks=pytest.mark.long) for name in (OURS, "UNet", "PlainConvUNet", "DynUNet, deep supervision")
]


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Compiled:
    """A network that is called compiled, as one graph: a break in it raises."""

    def __init__(self, network: nn.Module, **options: Any) -> None:
        self.called: Callable[..., Any] = torch.compile(network, fullgraph=True, **options)
        self.zero_grad, self.named_parameters = network.zero_grad, network.named_parameters

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.called(*args, **kwargs)


def given(name: str, side: int = 8) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The accelerated network of that name and what it is called with."""
    if name == OURS:
        torch.manual_seed(0)
        network = alive(UNet3D(image_size=16, model_channels=16, channel_mult=(1, 2), norm_groups=8))
        return accelerate(network, report=None), (volume(2, 3, side, side, side), torch.tensor([3, 70]))
    return accelerate(made(name), report=None), inputs(name, side=side)


def agree(network: nn.Module, compiled: Any, *args: Tensor, close: float = 1e-4) -> None:
    """Outputs, their dtypes and memory, and every gradient; where eager leaves none there is none."""
    outputs, gradients = passed(network, *args)
    found, found_gradients = passed(compiled, *args)
    for a, b in zip(found, outputs, strict=True):
        assert a.dtype == b.dtype
        assert a.stride() == b.stride()
        assert distance(a, b) < close
    assert farthest(found_gradients, gradients) < close


@pytest.mark.parametrize("name", ["UNet, plain", *SLOW])
def test_one_graph_computes_the_same(name: str) -> None:
    network, args = given(name)
    agree(network, Compiled(network, backend="aot_eager"), *args)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_one_graph_moves_running_statistics_as_eager_does(momentum: float | None) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv3d(1, 4, 3), nn.BatchNorm3d(4, momentum=momentum), nn.ReLU())
    eager, compiled = accelerate(network, report=None), accelerate(copy.deepcopy(network), report=None)
    called = Compiled(compiled, backend="aot_eager")
    for _ in range(3):
        x = volume(2, 1, 6, 6, 6)
        assert distance(called(x), eager(x)) < 1e-5
    before, after = dict(eager.named_buffers()), dict(compiled.named_buffers())
    assert before["1.num_batches_tracked"] == after["1.num_batches_tracked"] == 3
    assert all(distance(after[name], before[name]) < 1e-5 for name in ("1.running_mean", "1.running_var"))


def test_in_bf16_each_weight_is_cast_where_it_is_used() -> None:
    network, args = given("PlainConvUNet", side=12)
    network.forward.reduced_on = ("cpu",)  # type: ignore[union-attr]
    compiled = Compiled(network, backend="aot_eager")
    agree(network, compiled, *args)
    _, gradients = passed(compiled, *args)
    assert any(g is None for g in gradients.values()), "heads that are not used"
    assert all(g is None or g.dtype == torch.float32 for g in gradients.values())


@pytest.mark.long
def test_called_by_name_and_without_gradients_and_for_another_shape() -> None:
    network = accelerate(block(), report=None)
    compiled = Compiled(network, backend="aot_eager")
    x = volume(2, 3, 4, 6, 4)
    with torch.no_grad():
        assert distance(compiled(input=x), network(input=x)) < 1e-6
    agree(network, compiled, x)
    agree(network, compiled, volume(1, 3, 8, 4, 6))


@pytest.mark.long
def test_what_changes_afterwards_is_seen() -> None:
    network = accelerate(block(), report=None)
    compiled = Compiled(network, backend="aot_eager")
    x = volume(2, 3, 4, 4, 4)
    before = compiled(x).detach()
    with torch.no_grad():
        network[0].weight.mul_(2)
        network[1].weight.mul_(3)
    agree(network, compiled, x)
    network[0].padding_mode = "circular"
    network[0]._reversed_padding_repeated_twice = [1] * 6
    agree(network, compiled, x)
    assert distance(compiled(x), before) > 0.1


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "a part"])
@pytest.mark.parametrize("called", [False, True], ids=["not called yet", "called"])
@pytest.mark.long
def test_what_is_compiled_in_place_is_compiled_anew_with_the_fast_path(called: bool, whole: bool) -> None:
    graphs: list[torch.fx.GraphModule] = []

    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = block()

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x) + 1

    def compiler(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph

    inner, x = Mine(), volume(2, 3, 8, 8, 8)
    network = nn.Sequential(inner)
    twin = copy.deepcopy(network)
    plain = network(x)
    (network if whole else inner).compile(backend=compiler)
    if called:
        assert torch.equal(network(x), plain)
        assert graphs
    before = len(graphs)
    for each in (network, twin):
        accelerate(each, report=None).forward.reduced_on = ("cpu",)  # type: ignore[union-attr]
    agree(twin, network, x, close=1e-2)
    assert distance(network(x), plain) > 1e-4, "it is not in BF16: what was compiled before is called"
    assert len(graphs) > before
    assert torch.equal(restore(network)(x), plain)


def test_by_the_compiler_itself() -> None:
    if " " in torch.__file__ or shutil.which("g++") is None:
        pytest.skip("PyTorch compiles for a CPU by g++, and not from a path with a space")
    network = accelerate(block(), report=None)
    # Told so, the compiler tries no vector instructions in a program and a Python process of their own.
    compiled = Compiled(network, options={"cpp.vec_isa_ok": True})
    agree(network, compiled, volume(1, 3, 4, 4, 4))


@pytest.mark.gpu(kernels=True)
@pytest.mark.parametrize("name", ["UNet", "DynUNet"])
def test_the_kernels_are_operators_of_the_graph(name: str) -> None:
    network, args = given(name)
    network, args = network.to(DEVICE), tuple(a.to(DEVICE) for a in args)
    assert dispatch.serves(args[0].device)
    seen: set[str] = set()

    def compiler(graph: torch.fx.GraphModule, _: Any) -> Any:
        seen.update(str(node.target) for node in graph.graph.nodes if "medddpm" in str(node.target))
        return graph

    from torch._dynamo.backends.common import aot_autograd

    agree(network, Compiled(network, backend=aot_autograd(fw_compiler=compiler)), *args)
    assert {"medddpm.norm.default", "medddpm.norm_backward.default"} < seen


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("name", [OURS, "DiffusionModelUNet", "UNet", "DynUNet", "ResidualEncoderUNet"])
def test_on_a_gpu_in_both_modes(name: str, mode: str) -> None:
    """In BF16, by the kernels: the compiler rounds less often between layers, and is nearer to float32 for it."""
    network, args = given(name, side=16)
    network, args = network.cuda(), tuple(a.cuda() for a in args)
    compiled = Compiled(network, mode=mode)
    outputs, gradients = passed(network, *args)
    for _ in range(3):  # compiled, recorded, replayed
        torch.compiler.cudagraph_mark_step_begin()
        found, found_gradients = passed(compiled, *args)
        found = [a.clone() for a in found]
        assert [a.stride() for a in found] == [b.stride() for b in outputs]
        assert max(distance(a, b) for a, b in zip(found, outputs, strict=True)) < 2e-2
        together = (
            torch.cat([g.flatten() for _, g in sorted(each.items()) if g is not None])
            for each in (found_gradients, gradients)
        )
        assert distance(*together) < 0.1
    assert {n for n, g in found_gradients.items() if g is None} == {n for n, g in gradients.items() if g is None}


@pytest.mark.gpu(hopper=True)
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_with_the_hopper_kernels_at_a_size_that_fills_the_card(mode: str) -> None:
    torch.manual_seed(0)
    layers = [nn.Conv3d(1, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.SiLU(), nn.Conv3d(64, 64, 3, padding=1)]
    network = accelerate(nn.Sequential(*layers, nn.Conv3d(64, 1, 3, padding=1)).cuda(), report=None)
    x = volume(1, 1, 64, 64, 64).cuda()
    compiled = Compiled(network, mode=mode)
    for _ in range(3):
        torch.compiler.cudagraph_mark_step_begin()
        agree(network, compiled, x, close=1e-2)


# torch.export


@pytest.mark.parametrize("name", ["UNet", "DynUNet"])
def test_a_restored_copy_is_exported(name: str) -> None:
    network, args = given(name)
    network.eval()
    plain = restore(copy.deepcopy(network))
    program = torch.export.export(plain, args)
    assert not any("medddpm" in str(node.target) for node in program.graph.nodes)
    assert distance(program.module()(*args), network(*args)) < 1e-4


def test_an_accelerated_network_is_exported_with_its_operators() -> None:
    network = accelerate(block(), report=None).eval()
    x = volume(1, 3, 4, 4, 4)
    program = torch.export.export(network, (x,))
    assert distance(program.module()(x), network(x)) < 1e-6
    operators = {str(node.target) for node in program.graph.nodes if "medddpm" in str(node.target)}
    assert operators == ({"medddpm.norm.default"} if dispatch.serves(x.device) else set())


@pytest.mark.long
def test_a_restored_copy_becomes_onnx(tmp_path: Path) -> None:
    network = accelerate(block(), report=None).eval()
    file = tmp_path / "network.onnx"
    torch.onnx.export(restore(copy.deepcopy(network)), (volume(1, 3, 4, 4, 4),), file, dynamo=True)
    kinds = {node.op_type for node in onnx.load(file).graph.node}
    assert "Conv" in kinds


@pytest.mark.parametrize("dynamo", [True, False])
@pytest.mark.long
def test_an_accelerated_network_becomes_the_onnx_of_the_network_itself(
    dynamo: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX knows none of the kernels: no stand-in computes while it is written."""
    plain, x = block().eval(), volume(1, 3, 4, 4, 4)
    network, computed, kinds = accelerate(copy.deepcopy(plain), report=None), Forward.computed, []
    calls: list[object] = []
    monkeypatch.setattr(Forward, "computed", lambda self, *given: (calls.append(self), computed(self, *given))[1])
    for name, each in (("plain", plain), ("fast", network)):
        file = tmp_path / f"{name}.onnx"
        torch.onnx.export(each, (x,), file, dynamo=dynamo)
        kinds.append([node.op_type for node in onnx.load(file).graph.node])
    assert calls == []
    assert kinds[0] == kinds[1]
    assert distance(network(x), plain(x)) < 1e-5
    assert calls, "nor do they afterwards"
