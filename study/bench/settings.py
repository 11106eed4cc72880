"""The settings that `bench` measures: the ladder from BASE to FAST, one change a row, and further settings.

`medddpm.fast.patch.FEATURES` explains the features of the fast path that the ladder adds, and `medddpm.measure.tools`
has PyTorch's own tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from medddpm import switches
from medddpm.measure.tools import AUTOCAST, CAPTURED, COMPILED, INFERENCE, OPPONENTS, READERS, TOOLS, Tool, like
from study.bench.networks import Network

# The feature that each row of the ladder adds to the fast path of the row before; FAST adds the last, "hopper".
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
    like(replace(switches.FAST, features=frozenset(_features[: place + 1])), name, change, **_graphed)
    for place, (_, name, change) in enumerate(_ADDED)
]
_portable = replace(switches.FAST, features=frozenset(_features))  # without "hopper": as on any card from 8.0 on
_tf32 = replace(switches.FAST, precision="tf32")
BASE = Tool(switches.BASE, "FP32, as published")
LADDER = (
    BASE,
    Tool(switches.OPT1, "TF32"),
    Tool(switches.OPT12, "TF32, channels-last"),
    *AUTOCAST,
    like(switches.OPT12, "+ graph", "+ fused Adam, the step in one CUDA graph", autocast=True, **_graphed),
    *_grown,
    Tool(switches.FAST, "+ own kernels for the 3³ convolutions", **_graphed),
)
"""From BASE to FAST, one change a row; the graph comes before our kernels, as the host's time would hide their gain."""
BESIDE = (
    Tool(switches.OPT2, "FP32, channels-last"),
    *COMPILED,
    like(switches.FAST, "FAST eager", "FAST without its graph", fused_adam=True),
    like(_tf32, "FAST tf32", "FAST with TF32 in BF16's place", fused_adam=True, graph=True),
    *READERS,
    *(
        replace(
            tool,
            switches=replace(_portable, name=f"{tool.name} portable"),
            change=f"{tool.name}, no card's own kernels",
        )
        for tool in READERS
    ),
    *(
        like(switches.FAST, f"FAST {name}", f"FAST, torch.compile, {how}", compiled=mode, search=True, fused_adam=True)
        for name, how, mode in (
            ("compile", "cudnn.benchmark", "default"),
            ("reduce-overhead", "reduce-overhead", "reduce-overhead"),
        )
    ),
)
"""Settings the ladder is compared with.

The portable ones have the kernels that run on every card of compute capability 8.0 or more, on Hopper's too; "+ casts"
of the ladder is FAST with these. The last two compile the accelerated network, the fast path's kernels in it.
"""
BENCH_SETTINGS: Mapping[str, Tool] = MappingProxyType(
    {s.name: s for s in (*LADDER, *BESIDE, *OPPONENTS, *CAPTURED, *INFERENCE)}
)
"""Every setting by its name, in the order of the record."""
BY_SLUG: Mapping[str, Tool] = MappingProxyType({s.slug: s for s in BENCH_SETTINGS.values()})
"""Every setting by its name on the command line."""

OF_A_LOOP = ("FAST eager", "accelerate", "graphed_step")
"""FAST as a reader has it."""
SAMPLED = ("BASE", "FAST")
"""Settings whose 250-step sample is measured by default: it takes 250 forward passes."""


def default_settings(network: Network, ladder: bool = False, opponents: bool = False) -> list[Tool]:
    """Returns the settings that are measured by default, in order.

    Args:
        network: med-ddpm (the paper's settings and FAST), its BraTS form (BASE and FAST), or other people's (OPT1, the
            fast path, `TOOLS` and `INFERENCE`).
        ladder: whether med-ddpm is measured under every setting of `LADDER` and `BESIDE`.
        opponents: whether our networks are measured under every setting of `TOOLS` too, and FAST as a reader has it.
    """
    if not network.ours:
        names = ["OPT1", "FAST eager", "accelerate", "graphed_step", "FAST", *TOOLS, *(tool.name for tool in INFERENCE)]
    elif network.name == "med-ddpm":
        every = [setting.name for setting in (*LADDER, *BESIDE) if setting.name not in OF_A_LOOP]
        names = every if ladder else list(switches.SETTINGS)
    else:
        names = ["BASE", "FAST"]
    if opponents and network.ours:
        names = list(dict.fromkeys((*names, *OF_A_LOOP, *TOOLS)))
    return [BENCH_SETTINGS[name] for name in names]
