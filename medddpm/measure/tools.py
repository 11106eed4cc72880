"""PyTorch's own tools as their best users set them: autocast, `torch.compile`, cudnn.benchmark, layouts and graphs.

A network's step under each is what the fast path is compared with.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import nn

from medddpm import switches
from medddpm.fast.graphs import cuda_graphs
from medddpm.fast.patch import accelerate, restore
from medddpm.switches import Switches


@dataclass(frozen=True)
class Tool:
    """One way to run a network's step: switches, and what a training loop adds to them.

    Args:
        switches: how the network runs; their name is the setting's.
        change: the label of its row in a figure; after a plus, what it adds to the row before.
        autocast: whether forward pass and loss run under BF16 autocast.
        compiled: the mode in which the network goes through `torch.compile`; empty where it does not.
        search: whether cuDNN times its algorithms and takes the fastest (`torch.backends.cudnn.benchmark`).
        fused_adam: whether the update is one kernel, ready for a graph; otherwise PyTorch's default Adam.
        graph: whether a step is one CUDA graph.
        untouched: whether nothing is set, and `switches` gives the name and, for a reader, the features alone. PyTorch
            then rounds the operands of cuDNN's convolutions to TF32, and not those of matrix products.
        halved: whether weights and inputs are BF16 themselves, as inference may have them: a rival in the forward pass.
        reader: the function that a reader calls: "accelerate", in an ordinary loop, or "graphed_step"; empty for other
            tools, whose graph, if any, is the measuring program's own.
    """

    switches: Switches
    change: str
    autocast: bool = False
    compiled: str = ""
    search: bool = False
    fused_adam: bool = False
    graph: bool = False
    untouched: bool = False
    halved: bool = False
    reader: str = ""

    @property
    def name(self) -> str:
        """The name in the record."""
        return self.switches.name

    @property
    def slug(self) -> str:
        """The name on the command line and in files: "+ norm" is norm."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")

    @property
    def replays(self) -> bool:
        """True if `torch.compile` records its own CUDA graphs, so that the start of each step has to be marked."""
        return self.compiled in ("reduce-overhead", "max-autotune")

    def autocasting(self, device: torch.device) -> torch.autocast:
        """Returns the context of forward pass and loss."""
        return torch.autocast(device.type, torch.bfloat16, enabled=self.autocast)

    def generate(self, work: Callable[[], object]) -> None:
        """Traces what `work` compiles and generates its code, but runs none of the code and times nothing.

        A later compilation finds the code in PyTorch's caches. A graph that times a choice while it compiles, as
        max-autotune always does, or that fails, is left to the later compilation.
        """
        if not self.compiled:
            return
        from torch._functorch import config
        from torch._inductor import compile_fx
        from torch._inductor.runtime import benchmarking

        compiled, timer = compile_fx.compile_fx, benchmarking.benchmarker
        timed = [name for name in dir(timer) if name.startswith("benchmark")]
        backward = "force_non_lazy_backward_lowering"  # of PyTorch 2.8 on: else only the forward pass is generated

        def generated(*graph: Any, **how: Any) -> Callable[..., object]:
            compiled(*graph, **how)
            return _stop

        with contextlib.ExitStack() as stack:
            stack.callback(torch._dynamo.reset)
            stack.callback(setattr, compile_fx, "compile_fx", compiled)
            compile_fx.compile_fx = generated  # type: ignore[assignment]
            for name in timed:
                stack.callback(delattr, timer, name)
                setattr(timer, name, _stop)
            if hasattr(config, backward):
                stack.enter_context(config.patch({backward: True}))
            with contextlib.suppress(Exception):
                work()

    @contextlib.contextmanager
    def on(self, network: nn.Module) -> Iterator[nn.Module]:
        """Puts the process and `network` under the setting; yields the module to call in the network's place."""
        with contextlib.ExitStack() as stack:
            if self.halved:
                stack.enter_context(in_bf16(network))
            if not self.untouched:
                stack.enter_context(self.switches.on(network, inputs=not self.compiled))
            if self.search:
                stack.enter_context(searching())
            if self.reader:
                accelerate(network, only=self.switches.features, graph="auto", report=None)
                stack.callback(restore, network)
            elif not self.graph:
                stack.enter_context(cuda_graphs.off())
            called = network
            if self.compiled:
                called = cast(nn.Module, torch.compile(network, mode=self.compiled))  # an OptimizedModule
                if self.switches.channels_last and not self.switches.fast:
                    stack.callback(self.switches.converting(called).remove)  # outside of what is compiled
            yield called


@contextlib.contextmanager
def in_bf16(network: nn.Module) -> Iterator[None]:
    """Inside, the network's floating parameters and buffers are BF16; afterwards they are as they were."""
    tensors = [t for t in (*network.parameters(), *network.buffers()) if t.is_floating_point()]
    before = [t.data for t in tensors]
    for t in tensors:
        t.data = t.data.bfloat16()
    try:
        yield
    finally:
        for t, data in zip(tensors, before, strict=True):
            t.data = data


def _stop(*_inputs: object, **_options: object) -> None:
    """Takes the place of code that is not to run now."""
    raise RuntimeError("code is generated, and nothing is run")


@contextlib.contextmanager
def searching() -> Iterator[None]:
    """Inside, cuDNN times its algorithms for each convolution it meets, and takes the fastest."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def like(base: Switches, name: str, change: str, **beyond: Any) -> Tool:
    """Returns a tool whose switches are those of `base` under another name."""
    return Tool(replace(base, name=name), change, **beyond)


LAST = " channels-last"  # at the end of a tool's name
_layouts = ((switches.OPT1, "", ""), (switches.OPT12, LAST, ", channels-last"))
AUTOCAST = tuple(
    like(base, f"autocast{suffix}", f"BF16 autocast{layout}", autocast=True) for base, suffix, layout in _layouts
)
COMPILED = tuple(
    like(
        base,
        f"compile{suffix}",
        f"BF16 autocast, torch.compile{layout}",
        autocast=True,
        compiled="default",
        fused_adam=True,
    )
    for base, suffix, layout in _layouts
)
_searched = {"autocast": True, "search": True, "fused_adam": True}
OPPONENTS = (
    like(switches.BASE, "PyTorch", "PyTorch out of the box", untouched=True),
    like(switches.OPT1, "cudnn.benchmark", "TF32, cudnn.benchmark", search=True, fused_adam=True),
    *(
        like(base, f"autocast benchmark{suffix}", f"BF16 autocast, cudnn.benchmark{layout}", **_searched)
        for base, suffix, layout in _layouts
    ),
    *(
        like(base, f"{name}{suffix}", f"BF16 autocast, torch.compile, {how}{layout}", compiled=mode, **_searched)
        for name, how, mode in (
            ("compile benchmark", "cudnn.benchmark", "default"),
            ("reduce-overhead", "reduce-overhead", "reduce-overhead"),
            ("max-autotune", "max-autotune", "max-autotune"),
        )
        for base, suffix, layout in _layouts
    ),
)
"""Ordinary tools as their best users set them, from the cheapest to measure to the dearest.

All but PyTorch out of the box have `cudnn.benchmark` and the fused Adam, and what is compiled runs under BF16 autocast.
"""
CAPTURED = tuple(
    like(
        base,
        f"{name} graph{suffix}",
        f"BF16 autocast, {how}, the step in one CUDA graph{layout}",
        compiled=mode,
        graph=True,
        **_searched,
    )
    for name, how, mode in (
        ("compile", "torch.compile", "default"),
        ("max-autotune", "torch.compile, max-autotune", "max-autotune-no-cudagraphs"),
    )
    for base, suffix, layout in _layouts
)
"""The rivals of `graphed_step`: the whole step, compiled and captured as PyTorch's documentation shows.

https://docs.pytorch.org/docs/stable/notes/cuda.html#whole-network-capture
"""
INFERENCE = tuple(
    like(
        base, f"BF16 {name}{suffix}", f"BF16 weights, {how}{layout}", compiled=mode, search=True, halved=True,
    )
    for name, how, mode in (
        ("weights", "cudnn.benchmark", ""),
        ("reduce-overhead", "reduce-overhead", "reduce-overhead"),
        ("max-autotune", "max-autotune", "max-autotune"),
    )
    for base, suffix, layout in _layouts
)  # fmt: skip
"""The rivals of a forward pass: the network cast to BF16 as a whole, which a training's update would not survive."""
_called = {"untouched": True, "search": True, "fused_adam": True}
READERS = (
    like(switches.FAST, "accelerate", "accelerate, in an ordinary loop", reader="accelerate", **_called),
    like(switches.FAST, "graphed_step", "accelerate and graphed_step", reader="graphed_step", **_called),
)
"""The fast path as a reader calls it."""
ORDINARY = tuple(tool.name for tool in (*AUTOCAST, *COMPILED, *OPPONENTS))
"""The tools that a user has without this package: the fast path is compared with the best of them."""
TOOLS = (*ORDINARY, *(tool.name for tool in CAPTURED))
"""The ordinary tools, and the further rivals of `graphed_step`."""
_benchmark = [tool for tool in OPPONENTS if tool.search and tool.autocast]
FLOAT32 = Tool(switches.BASE, "float32, TF32 off")
"""Errors are measured from its outputs and gradients."""
COMPARED = (
    OPPONENTS[0],
    like(switches.OPT1, "TF32", "TF32 in matrix products too"),
    OPPONENTS[1],
    like(switches.OPT12, "channels-last", "TF32, cudnn.benchmark, channels-last", search=True),
    *_benchmark,
    *READERS,
    *INFERENCE,
)
"""The tools of `medddpm compare`, in its order; `INFERENCE` only for a forward pass, `graphed_step` only for a step."""
