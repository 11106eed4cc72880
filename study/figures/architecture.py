"""Figure 3: every stage of a live U-Net with its cost, and the drawing."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from medddpm.unet import AttentionBlock, Downsample, ResBlock, Stage, UNet3D, Upsample
from study.figures.style import LAYER_COLOURS

KINDS: dict[type[nn.Module], str] = {
    ResBlock: "residual",
    AttentionBlock: "attention",
    Downsample: "down",
    Upsample: "up",
    nn.Conv3d: "convolution",
}


def describe(unet: UNet3D, size: tuple[int, int, int]) -> pd.DataFrame:
    """Runs a copy of `unet` on shapes alone, without memory or arithmetic, and notes what passes through each layer.

    Args:
        unet: the network; it is not changed.
        size: (D, H, W) of the volume.

    Returns:
        a row a layer of the encoder, the middle, the decoder and the output, in the order they run: part, stage (index
        in its part), kind, level (halvings of the volume), in_channels, out_channels, depth, height, width (of what
        comes out), parameters, gflop (of one forward pass of one volume; a multiply-add counts two).
    """
    unet = copy.deepcopy(unet).to("meta")
    layers = {module: name for name, module in unet.named_modules()}
    rows: list[dict[str, object]] = []

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        part, stage = _place(layers[module])
        rows.append(
            {
                "name": layers[module],
                "part": part,
                "stage": stage,
                "kind": KINDS.get(type(module), "output"),
                "level": (size[0] // output.shape[2]).bit_length() - 1,
                "in_channels": inputs[0].shape[1],
                "out_channels": output.shape[1],
                "depth": output.shape[2],
                "height": output.shape[3],
                "width": output.shape[4],
                "parameters": sum(p.numel() for p in module.parameters()),
            }
        )

    stages = [*unet.input_blocks, unet.middle_block, *unet.output_blocks]
    noted = [layer for stage in stages if isinstance(stage, Stage) for layer in stage] + [unet.out]
    for layer in noted:
        layer.register_forward_hook(note)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        unet(torch.empty(1, unet.in_channels, *size, device="meta"), torch.zeros(1, device="meta"))
    counts = counter.get_flop_counts()
    table = pd.DataFrame(rows)
    table["gflop"] = [sum(counts[f"UNet3D.{name}"].values()) / 1e9 for name in table.pop("name")]
    return table


def _place(name: str) -> tuple[str, int]:
    """The part and the stage of a layer called input_blocks.3.0, middle_block.1 or out."""
    part, *rest = name.split(".")
    parts = {"input_blocks": "encoder", "middle_block": "middle", "output_blocks": "decoder", "out": "output"}
    return parts[part], int(rest[0]) if rest else 0


# Figure 3


def architecture(table: pd.DataFrame, axis: Axes) -> Axes:
    """The U of Figure 3: a box a layer, the encoder down the left, the decoder up the right, a row a level.

    In a row the layers run from left to right; an arrow is a skip, from what an encoder stage gives to the decoder
    stage that takes it.

    Args:
        table: of `study.figures.architecture.describe`.
        axis: drawn into; its frame is removed.
    """
    levels = int(table["level"].max())
    layers = table.to_dict("records")
    taken: dict[tuple[object, int], int] = {}  # boxes in each arm's row so far
    columns = []
    for layer in layers:
        arm = (layer["part"] if layer["part"] != "output" else "decoder", _row(layer, levels))
        columns.append(taken.get(arm, 0))
        taken[arm] = columns[-1] + 1
    left, right = (max(n for (part, _), n in taken.items() if part == arm) for arm in ("encoder", "decoder"))
    offset = {"encoder": 0.0, "middle": (left + right - 2.5) / 2, "decoder": left + 0.5, "output": left + 0.5}
    centres = [
        (offset[layer["part"]] + column, -_row(layer, levels)) for layer, column in zip(layers, columns, strict=True)
    ]
    for layer, (x, y) in zip(layers, centres, strict=True):
        _layer_box(axis, x, y, layer)
    _skips(axis, layers, centres)
    for level in range(levels + 1):
        last = [layer for layer in layers if layer["part"] == "encoder" and layer["level"] == level][-1]
        axis.text(-0.6, -level, f"{_space(last)}\n{last['out_channels']} ch", ha="right", va="center", fontsize=7)
    axis.text(offset["middle"] - 0.6, -levels - 1, f"{_space(last)}\nmiddle", ha="right", va="center", fontsize=7)
    axis.set(xlim=(-1.45, left + right + 0.05), ylim=(-levels - 1.4, 0.4))
    axis.set_axis_off()
    return axis


Layer = Mapping[Any, Any]


def _row(layer: Layer, levels: int) -> int:
    """A layer's row: the level it works at, for an upsampling the one it reaches; the middle lies below all."""
    return levels + 1 if layer["part"] == "middle" else int(layer["level"])


def _layer_box(axis: Axes, x: float, y: float, layer: Layer) -> None:
    box = FancyBboxPatch(
        (x - 0.46, y - 0.34),
        0.92,
        0.68,
        boxstyle="round,pad=0,rounding_size=0.06",
        facecolor=LAYER_COLOURS[layer["kind"]],
        edgecolor="black",
        linewidth=0.5,
    )
    axis.add_patch(box)
    lines = [layer["kind"], f"{layer['in_channels']}→{layer['out_channels']}"]
    lines += [_si(layer["parameters"]), f"{_si(layer['gflop'] * 1e9)}FLOP"]
    axis.text(x, y, "\n".join(lines), ha="center", va="center", fontsize=7, linespacing=1.1)


def _skips(axis: Axes, layers: Sequence[Layer], centres: Sequence[tuple[float, float]]) -> None:
    """An arrow for each encoder stage, from its last layer to the first of the decoder stage; the last goes first."""
    ends = {layer["stage"]: place for layer, place in zip(layers, centres, strict=True) if layer["part"] == "encoder"}
    starts: dict[int, tuple[float, float]] = {}
    for layer, place in zip(layers, centres, strict=True):
        if layer["part"] == "decoder":
            starts.setdefault(layer["stage"], place)
    for (x0, y0), (x1, y1) in zip(reversed(ends.values()), starts.values(), strict=True):
        arrow = FancyArrowPatch(
            (x0, y0 - 0.34),
            (x1, y1 - 0.34),
            connectionstyle="arc3,rad=0.05",
            arrowstyle="-|>",
            mutation_scale=6,
            linewidth=0.6,
            color="#555555",
            shrinkA=0,
            shrinkB=0,
        )
        axis.add_patch(arrow)


def _space(layer: Layer) -> str:
    sides = [int(layer[name]) for name in ("height", "width", "depth")]
    return f"{sides[0]}³" if len(set(sides)) == 1 else "×".join(map(str, sides))


def _si(value: float) -> str:
    """Three digits and a prefix: 928 G."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g} "
