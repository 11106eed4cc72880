"""The settings that `medddpm bench` measures: the ladder from BASE to FAST, one change a rung, and what stands beside.

Features are those of `medddpm.fast.patch.FEATURES`: what each of them is, stands there.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import cast

import torch
from torch import nn

from medddpm.runtime import cuda_graphs
from medddpm.study.bench.networks import Network
from medddpm.switches import Switches


@dataclass(frozen=True)
class Rung:
    """One setting of the bench.

    Args:
        name: as in the record.
        change: what a figure's row calls it; behind a plus, what it adds to the rung before.
        tf32, channels_last: as in `medddpm.switches`.
        autocast: whether forward and loss run under BF16 autocast.
        compiled: whether the network goes through `torch.compile`, default mode.
        precision: of `medddpm.accelerate.accelerate`; empty where the network is left as it is.
        features: what is accelerated; None for everything.
        fused_adam: whether the update is one kernel, ready for a graph; otherwise PyTorch's default Adam.
        graph: whether a step is one CUDA graph.
    """

    name: str
    change: str
    tf32: bool = True
    channels_last: bool = False
    autocast: bool = False
    compiled: bool = False
    precision: str = ""
    features: frozenset[str] | None = None
    fused_adam: bool = False
    graph: bool = False

    @property
    def slug(self) -> str:
        """What the command line and files call it: "+ norm" is norm."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")

    @property
    def accelerated(self) -> bool:
        """Whether `medddpm.accelerate` is at work."""
        return bool(self.precision)

    def autocasting(self, device: torch.device) -> torch.autocast:
        """The context of forward and loss."""
        return torch.autocast(device.type, torch.bfloat16, enabled=self.autocast)

    @contextlib.contextmanager
    def on(self, network: nn.Module) -> Iterator[nn.Module]:
        """Inside, the process and `network` are set to it; yields what is called in the network's place."""
        with contextlib.ExitStack() as stack:
            if self.accelerated:
                from medddpm.fast.patch import accelerate, restore

                stack.enter_context(Switches(self.name, tf32=self.tf32, channels_last=False))  # the flags alone
                stack.callback(restore, network)
                accelerate(network, self.precision, only=None if self.features is None else set(self.features))
                if not self.graph:
                    stack.enter_context(cuda_graphs.off())
            else:
                flags = Switches(self.name, tf32=self.tf32, channels_last=self.channels_last)
                stack.enter_context(flags.on(network))
            yield cast(nn.Module, torch.compile(network)) if self.compiled else network  # an OptimizedModule


# In the order of the ladder: what each rung adds to the one before.
_ADDED = (
    ("norm", "+ norm", "+ fused norm and activation"),
    ("upsample", "+ upsampling", "+ gather-type upsampling"),
    ("residual", "+ residual", "+ no passes for adds and concatenation"),
    ("few_channels", "+ edges", "+ own kernels for the first and last convolution"),
    ("attention", "+ attention", "+ scaled-dot-product attention"),
    ("casts", "+ casts", "+ weights cast to BF16 at once"),
    ("hopper", "+ convolution", "+ own kernels for the 3³ convolutions"),
)
_features = [feature for feature, _, _ in _ADDED]
_grown = [
    Rung(name, change, precision="bf16", features=frozenset(_features[: place + 1]))
    for place, (_, name, change) in enumerate(_ADDED)
]
BASE = Rung("BASE", "FP32, as published", tf32=False)
LADDER = (
    BASE,
    Rung("OPT1", "TF32"),
    Rung("OPT12", "TF32, channels-last", channels_last=True),
    Rung("autocast", "BF16 autocast, contiguous", autocast=True),
    Rung("autocast channels-last", "BF16 autocast, channels-last", autocast=True, channels_last=True),
    *_grown,
    Rung("+ fused Adam", "+ fused Adam", precision="bf16", fused_adam=True),
    Rung("FAST", "+ the step in one CUDA graph", precision="bf16", fused_adam=True, graph=True),
)
"""From BASE to FAST, one change a rung."""
BESIDE = (
    Rung("OPT2", "FP32, channels-last", tf32=False, channels_last=True),
    Rung("compile", "BF16 autocast, torch.compile", autocast=True, compiled=True, fused_adam=True),
    Rung(
        "compile channels-last",
        "BF16 autocast, torch.compile, channels-last",
        autocast=True,
        compiled=True,
        channels_last=True,
        fused_adam=True,
    ),
    Rung("FAST eager", "FAST without its graph", precision="bf16", fused_adam=True),
    Rung("FAST tf32", "FAST with TF32 in BF16's place", precision="tf32", fused_adam=True, graph=True),
)
"""What the ladder is held against."""
RUNGS: Mapping[str, Rung] = MappingProxyType({rung.name: rung for rung in (*LADDER, *BESIDE)})
"""Every setting by its name, in the order of the record."""
BY_SLUG: Mapping[str, Rung] = MappingProxyType({rung.slug: rung for rung in RUNGS.values()})
"""Every setting by what the command line calls it."""

ORDINARY = ("autocast", "autocast channels-last", "compile", "compile channels-last")
"""What a user gets without this package: the best of these is what FAST has to beat."""
SAMPLED = ("BASE", "FAST")
"""Whose 250-step sample is measured by default: any other takes 250 of its forward passes."""


def default_rungs(network: Network, ladder: bool) -> list[Rung]:
    """What is measured of a network where no setting is named: the paper's and FAST, the whole ladder, or what is
    compared of another's network."""
    if network.name == "med-ddpm":
        names = [r.name for r in (*LADDER, *BESIDE) if r.name != "FAST eager"]  # that is the rung "+ fused Adam"
        return [RUNGS[name] for name in (names if ladder else ("BASE", "OPT1", "OPT2", "OPT12", "FAST"))]
    if network.ours:
        return [RUNGS[name] for name in ("BASE", "FAST")]
    return [RUNGS[name] for name in ("OPT1", *ORDINARY, "FAST eager", "FAST")]
