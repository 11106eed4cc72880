"""What every stage of a live U-Net is and costs: the table behind Figure 3."""

from __future__ import annotations

import copy

import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from medddpm.unet import AttentionBlock, Downsample, ResBlock, Stage, UNet3D, Upsample

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
