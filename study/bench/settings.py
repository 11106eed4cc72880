"""The settings that `bench` measures: the ladder from BASE to FAST, one change a row, and what stands beside.

`medddpm.fast.patch.FEATURES` explains the features of the fast path that the ladder adds.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import nn

from medddpm import switches
from medddpm.fast.graphs import cuda_graphs
from medddpm.fast.patch import accelerate, restore
from medddpm.switches import Switches
from study.bench.networks import Network


@dataclass(frozen=True)
class BenchSetting:
    """One setting of the bench: switches, and what a training loop adds to them.

    Args:
        switches: how the network runs; their name is the setting's.
        change: the label of its row in a figure; after a plus, what it adds to the row before.
        autocast: whether forward pass and loss run under BF16 autocast.
        compiled: the mode in which the network goes through `torch.compile`; empty where it does not.
        search: whether cuDNN times its algorithms and takes the fastest (`torch.backends.cudnn.benchmark`).
        fused_adam: whether the update is one kernel, ready for a graph; otherwise PyTorch's default Adam.
        graph: whether a step is one CUDA graph.
        untouched: whether nothing is set, and `switches` gives the name alone. PyTorch then rounds the operands of
            cuDNN's convolutions to TF32, and not those of matrix products.
        reader: what a reader calls: "accelerate", in an ordinary loop, or "graphed_step" as well; empty for the rest,
            whose graph, if any, is the bench's own.
    """

    switches: Switches
    change: str
    autocast: bool = False
    compiled: str = ""
    search: bool = False
    fused_adam: bool = False
    graph: bool = False
    untouched: bool = False
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
        """Returns whether `torch.compile` records CUDA graphs of its own, and has to be told where a step begins."""
        return self.compiled in ("reduce-overhead", "max-autotune")

    def autocasting(self, device: torch.device) -> torch.autocast:
        """The context of forward pass and loss."""
        return torch.autocast(device.type, torch.bfloat16, enabled=self.autocast)

    @contextlib.contextmanager
    def on(self, network: nn.Module) -> Iterator[nn.Module]:
        """Puts the process and `network` under the setting; yields the module to call in the network's place."""
        with contextlib.ExitStack() as stack:
            if not self.untouched:
                stack.enter_context(self.switches.on(network, inputs=not self.compiled))
            if self.search:
                stack.enter_context(searching())
            if self.reader:
                accelerate(network, graph="auto", report=None)
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
def searching() -> Iterator[None]:
    """Inside, cuDNN times its algorithms for each convolution it meets, and takes the fastest."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _like(base: Switches, name: str, change: str, **beyond: Any) -> BenchSetting:
    return BenchSetting(replace(base, name=name), change, **beyond)


# What each row of the ladder adds to the fast path of the row before; FAST adds the last, "hopper".
_ADDED = (
    ("norm", "+ norm", "+ fused norm and activation"),
    ("upsample", "+ upsampling", "+ gather-type upsampling"),
    ("residual", "+ residual", "+ no passes for adds and concatenation"),
    ("few_channels", "+ edges", "+ own kernels for the first and last convolution"),
    ("attention", "+ attention", "+ scaled-dot-product attention"),
    ("casts", "+ casts", "+ weights cast to BF16 at once"),
)
_graphed: dict[str, Any] = {"fused_adam": True, "graph": True}
_features = [feature for feature, _, _ in _ADDED]
_grown = [
    _like(replace(switches.FAST, features=frozenset(_features[: place + 1])), name, change, **_graphed)
    for place, (_, name, change) in enumerate(_ADDED)
]
_compiled = {"autocast": True, "compiled": "default", "fused_adam": True}
_called = {"untouched": True, "search": True, "fused_adam": True}
_tf32 = replace(switches.FAST, precision="tf32")
BASE = BenchSetting(switches.BASE, "FP32, as published")
LADDER = (
    BASE,
    BenchSetting(switches.OPT1, "TF32"),
    BenchSetting(switches.OPT12, "TF32, channels-last"),
    _like(switches.OPT1, "autocast", "BF16 autocast", autocast=True),
    _like(switches.OPT12, "autocast channels-last", "BF16 autocast, channels-last", autocast=True),
    _like(switches.OPT12, "+ graph", "+ fused Adam, the step in one CUDA graph", autocast=True, **_graphed),
    *_grown,
    BenchSetting(switches.FAST, "+ own kernels for the 3³ convolutions", **_graphed),
)
"""From BASE to FAST, one change a row; the graph comes before what is ours, or else the host's time hides the rest."""
BESIDE = (
    BenchSetting(switches.OPT2, "FP32, channels-last"),
    _like(switches.OPT1, "compile", "BF16 autocast, torch.compile", **_compiled),
    _like(switches.OPT12, "compile channels-last", "BF16 autocast, torch.compile, channels-last", **_compiled),
    _like(switches.FAST, "FAST eager", "FAST without its graph", fused_adam=True),
    _like(_tf32, "FAST tf32", "FAST with TF32 in BF16's place", fused_adam=True, graph=True),
    _like(switches.FAST, "accelerate", "accelerate, in an ordinary loop", reader="accelerate", **_called),
    _like(switches.FAST, "graphed_step", "accelerate and graphed_step", reader="graphed_step", **_called),
    *(
        _like(switches.FAST, f"FAST {name}", f"FAST, torch.compile, {how}", compiled=mode, search=True, fused_adam=True)
        for name, how, mode in (
            ("compile", "cudnn.benchmark", "default"),
            ("reduce-overhead", "reduce-overhead", "reduce-overhead"),
        )
    ),
)
"""Settings the ladder is compared with; the last two compile the accelerated network, the fast path's kernels in it."""
_searched = {"autocast": True, "search": True, "fused_adam": True}
LAST = " channels-last"  # at the end of a setting's name
_layouts = ((switches.OPT1, "", ""), (switches.OPT12, LAST, ", channels-last"))
OPPONENTS = (
    _like(switches.BASE, "PyTorch", "PyTorch out of the box", untouched=True),
    _like(switches.OPT1, "cudnn.benchmark", "TF32, cudnn.benchmark", search=True, fused_adam=True),
    *(
        _like(base, f"autocast benchmark{suffix}", f"BF16 autocast, cudnn.benchmark{layout}", **_searched)
        for base, suffix, layout in _layouts
    ),
    *(
        _like(base, f"{name}{suffix}", f"BF16 autocast, torch.compile, {how}{layout}", compiled=mode, **_searched)
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
    _like(
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
"""What `graphed_step` is held against: the whole step, compiled, as PyTorch's documentation has a user capture it.

https://docs.pytorch.org/docs/stable/notes/cuda.html#whole-network-capture
"""
BENCH_SETTINGS: Mapping[str, BenchSetting] = MappingProxyType(
    {s.name: s for s in (*LADDER, *BESIDE, *OPPONENTS, *CAPTURED)}
)
"""Every setting by its name, in the order of the record."""
BY_SLUG: Mapping[str, BenchSetting] = MappingProxyType({s.slug: s for s in BENCH_SETTINGS.values()})
"""Every setting by its name on the command line."""

ORDINARY = (
    *("autocast", "autocast channels-last", "compile", "compile channels-last"),
    *(setting.name for setting in OPPONENTS),
)
"""What a user gets without this package: FAST is compared with the best of these."""
TOOLS = (*ORDINARY, *(setting.name for setting in CAPTURED))
"""These, and what else `graphed_step` is held against."""
OF_A_LOOP = ("FAST eager", "accelerate", "graphed_step")
"""FAST as a reader has it."""
SAMPLED = ("BASE", "FAST")
"""Settings whose 250-step sample is measured by default: it takes 250 forward passes."""


def default_settings(network: Network, ladder: bool = False, opponents: bool = False) -> list[BenchSetting]:
    """The settings measured where none is named, in the order they are measured.

    Args:
        network: med-ddpm (the paper's settings and FAST), its BraTS form (BASE and FAST), or other people's (OPT1, the
            fast path and `TOOLS`).
        ladder: whether med-ddpm is measured under every setting of `LADDER` and `BESIDE`.
        opponents: whether our networks are measured under every setting of `TOOLS` too, and FAST as a reader has it.
    """
    if not network.ours:
        names = ["OPT1", "FAST eager", "accelerate", "graphed_step", "FAST", *TOOLS]
    elif network.name == "med-ddpm":
        every = [setting.name for setting in (*LADDER, *BESIDE) if setting.name not in OF_A_LOOP]
        names = every if ladder else list(switches.SETTINGS)
    else:
        names = ["BASE", "FAST"]
    if opponents and network.ours:
        names = list(dict.fromkeys((*names, *OF_A_LOOP, *TOOLS)))
    return [BENCH_SETTINGS[name] for name in names]
