"""A training run: what it is made of, and its folder, which says so and holds its checkpoints."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import nibabel
from torch import Tensor

from medddpm.atomic import replacing
from medddpm.checkpoints import read_checkpoint, save_checkpoint
from medddpm.errors import BadInput
from medddpm.layouts import Layout
from medddpm.volumes import Size


class Volumes(Protocol):
    """What training needs of a data set: `VolumeFolder` and `Phantom` are such."""

    size: Size
    layout: Layout

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]: ...

    def names(self) -> list[str]:
        """A name for each item, the same in every run over the same data."""
        ...

    def reference(self, index: int) -> nibabel.Nifti1Image:
        """The mask of an item as a NIfTI image: the grid that its sample is written on."""
        ...


@dataclass(frozen=True)
class TrainConfig:
    """What a run is made of. The defaults are the published ones.

    Args:
        switches: a name of `medddpm.switches.SETTINGS`.
        image_size, model_channels, num_res_blocks, channel_mult, norm_groups: as for `UNet3D`.
        learning_rate: Adam's.
        batch_size: volumes of a micro-step, in each process.
        accumulation: micro-steps of a step.
        offset_noise: of `medddpm.diffusion.GaussianDiffusion`.
        clip_norm: a step's gradient is scaled down to this norm where it is larger (0: never).
        ema_decay, ema_every: the average's, and the steps between its updates.
        ema_start: the step up to which the average is the weights.
        seed: of the initial weights, the order of the volumes, the timesteps and the noise.
        save_every, sample_every: steps between checkpoints, and between samples (0: none).
        keep: checkpoints kept, the newest.
        read_every_loss: brings each micro-step's loss to the host, as the published loop does; the device then waits.
        workers: processes that prepare volumes ahead; 0 prepares them in between.
    """

    switches: str = "BASE"
    image_size: int = 128
    model_channels: int = 64
    num_res_blocks: int = 1
    channel_mult: Sequence[int] | None = None
    norm_groups: int = 32
    learning_rate: float = 1e-5
    batch_size: int = 1
    accumulation: int = 2
    offset_noise: float = 0.0
    clip_norm: float = 0.0
    ema_decay: float = 0.995
    ema_every: int = 10
    ema_start: int = 2000
    seed: int = 0
    save_every: int = 1000
    sample_every: int = 1000
    keep: int = 2
    read_every_loss: bool = False
    workers: int = 0


# A run may be resumed with another value of these; every other field is part of what the run computes.
FREE = {"save_every", "sample_every", "keep", "read_every_loss", "workers"}


def claim(out: Path, config: TrainConfig, volumes: Volumes) -> None:
    """Makes the folder this run's, or finds that it is."""
    record = out / "run.json"
    # Of what JSON knows, so that it can be compared with what is read back: a tuple is a list there.
    wanted = json.loads(json.dumps({**asdict(config), "size": volumes.size, "layout": volumes.layout.name}))
    wanted["volumes"] = volumes.names()
    if record.exists():
        known = {**asdict(TrainConfig()), **read_run(out)}  # of an earlier version it may lack what is newer
        changed = [key for key in wanted if key not in FREE and known.get(key) != wanted[key]]
        if changed:
            key = changed[0]
            was, now = ("other files", "these") if key == "volumes" else (known.get(key), wanted[key])
            raise BadInput(
                out,
                f"its run was begun with {key} {was}, not {now}",
                "resume it with the same, or train in another folder",
            )
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(out, "it is there already and is no run of medddpm", "choose a folder that is new or empty")
    with replacing(record) as temporary:
        temporary.write_text(json.dumps(wanted, indent=1) + "\n")
    for torn in out.rglob(".writing-*"):  # of a run that was killed
        torn.unlink()


def read_run(out: Path) -> dict[str, Any]:
    """The run.json of a run's folder: its configuration, the volumes' size and names."""
    record = out / "run.json"
    try:
        content = json.loads(record.read_text())
        if not isinstance(content, dict):
            raise ValueError
    except ValueError:
        raise BadInput(record, "it is damaged", "remove it together with the run, or choose another folder") from None
    return content


def checkpoints_of(out: Path) -> list[Path]:
    """A run's checkpoints, oldest first."""
    return sorted((out / "checkpoints").glob("step-*.pt"))


def save(out: Path, content: Mapping[str, Any], keep: int) -> None:
    """Writes a checkpoint, then removes all but the newest `keep`."""
    save_checkpoint(out / "checkpoints" / f"step-{content['step']:07d}.pt", content)
    for old in checkpoints_of(out)[: -max(keep, 1)]:
        old.unlink()


def newest(out: Path) -> tuple[Path, dict[str, Any]] | None:
    """A run's newest checkpoint that can be read; one that cannot is named, and the one before it taken."""
    for path in reversed(checkpoints_of(out)):
        try:
            return path, read_checkpoint(path)
        except BadInput as error:
            print(f"{error}; going back to the one before", file=sys.stderr)
    return None
