"""Common advice for keeping a GPU busy, each piece as a training of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Lever:
    """One training, as `medddpm train --setting fast` but for one change.

    Args:
        group: the kind of change.
        choice: its value.
        costs: its price beside time, in a few words.
        setting: a name in `medddpm.switches.SETTINGS`.
        brats: four modalities at 192×192×144, two blocks a level; else one at 128³.
        batch: volumes in a micro-step; a step has one micro-step.
        autocast: "bfloat16" or "float16" where the forward pass runs under autocast.
        recompute: of `medddpm.unet.RECOMPUTED`.
        graph: whether a step is one CUDA graph.
        fused: whether Adam's update is one kernel; else PyTorch's default, a few kernels for many weights at once.
        source: of a volume: "device" memory; the "disk" cache, also on a "RAM disk"; prepared at every epoch from
            "phantom", "nii.gz" or "nii"; or prepared once from .nii.gz into MONAI's "CacheDataset" or
            "PersistentDataset".
        workers: processes that load.
        pinned: whether batches come in page-locked memory, from which a GPU copies while it computes.
        prefetch: batches that each process prepares ahead.
        augments: where volumes are flipped and deformed at random: the "step" on its device, or the "loader"; empty
            if they are not.
    """

    group: str
    choice: str
    costs: str = ""
    setting: str = "FAST"
    brats: bool = False
    batch: int = 1
    autocast: str = ""
    recompute: str = "none"
    graph: bool = True
    fused: bool = True
    source: str = "device"
    workers: int = 2
    pinned: bool = True
    prefetch: int = 2
    augments: str = ""

    @property
    def loads_otherwise(self) -> bool:
        """True if its loader differs from the trainer's in more than the number of processes."""
        return (self.pinned, self.prefetch) != (_ONE.pinned, _ONE.prefetch)

    @property
    def key(self) -> str:
        """The name on the command line and of its file."""
        return re.sub(r"[^a-z0-9]+", "-", f"{self.group} {self.choice}".lower()).strip("-")


_ONE = Lever("reference", "fast", "a GPU with the kernels' instructions")


def _loading(source: str, costs: str, *counts: int) -> list[Lever]:
    names = {count: f"{source}, {count} process{'es' * (count != 1)}" for count in counts}
    return [Lever("loading", name, costs, source=source, workers=count) for count, name in names.items()]


LEVERS = (
    _ONE,
    *(Lever("batch", str(size), "memory; fewer steps an epoch", batch=size) for size in (2, 4, 8, 16)),
    Lever("precision", "FP32", "memory", setting="BASE", graph=False),
    Lever("precision", "TF32", "memory; operands of products rounded to 11 significant bits", setting="OPT1",
          graph=False),
    Lever("precision", "BF16 autocast", "operands of products rounded to 8 significant bits", setting="OPT1",
          autocast="bfloat16", graph=False),
    Lever("precision", "FP16 autocast", "range: needs a loss scaler, which is not timed", setting="OPT1",
          autocast="float16", graph=False),
    Lever("graph", "no CUDA graph", "nothing", graph=False),
    Lever("optimizer", "Adam, not fused", "nothing", fused=False),
    *(Lever("recompute", level, "time", recompute=level) for level in ("attention", "1", "2", "all")),
    *(Lever("recompute BraTS", level, "time", brats=True, recompute=level) for level in ("none", "1", "2", "all")),
    *_loading("phantom", "cores, at every epoch", 0, 2, 8),
    *_loading("nii.gz", "cores, at every epoch", 0, 2, 8),
    *_loading("nii", "cores, and disk", 2),
    *_loading("disk", "13 MB of disk a volume", 0, 1, 2),
    *_loading("RAM disk", "13 MB of memory a volume", 2),
    *_loading("CacheDataset", "13 MB of memory a volume; filled anew by each training", 2),
    *_loading("PersistentDataset", "13 MB of disk a volume", 2),
    Lever("loading", "disk, 2 processes, not pinned", "nothing", source="disk", pinned=False),
    Lever("loading", "disk, 2 processes, 8 batches ahead", "memory", source="disk", prefetch=8),
    Lever("augmentation", "by the GPU", "the image's finest detail", augments="step"),
    *(Lever("augmentation", f"by {count} loading processes", "cores; the image's finest detail", source="disk",
            workers=count, augments="loader") for count in (2, 8)),
)  # fmt: skip
"""Every lever, the reference first: the volumes in the device's memory, one a step, in one graph."""
BY_KEY: Mapping[str, Lever] = MappingProxyType({lever.key: lever for lever in LEVERS})
"""Every lever by its name on the command line."""
