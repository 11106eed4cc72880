"""The weights of another model that a run starts from."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from medddpm.checkpoints.files import diffusion_from, newest_checkpoint, read_checkpoint
from medddpm.data.layouts import Layout
from medddpm.errors import BadInput
from medddpm.runtime.files import opened
from medddpm.training.config import TrainConfig
from medddpm.training.mismatch import option

NETWORK = ("image_size", "model_channels", "num_res_blocks", "channel_mult", "norm_groups")
"""The fields of a `TrainConfig` that a network has from its file; the image size decides where it has attention."""


@dataclass(frozen=True)
class Initial:
    """The averaged weights in a file, or the only ones it has.

    Args:
        path: the file.
        origin: its name and its SHA-256, for `TrainConfig.init`.
        state: the weights and the schedule, by name.
        network: `UNet3D.config`.
        prediction: what it was trained to predict.
    """

    path: Path
    origin: str
    state: Mapping[str, Tensor]
    network: Mapping[str, Any]
    prediction: str

    def fields(self, layout: Layout, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields of a `TrainConfig` that the file decides.

        Args:
            layout: of the volumes to train on.
            chosen: fields that were chosen, of `NETWORK` or "prediction"; None stands for one that was not.

        Raises:
            BadInput: the network takes other volumes or masks, or another one was chosen; the message names all.
        """
        channels = (self.network["out_channels"], self.network["in_channels"] - self.network["out_channels"])
        if channels != (layout.image_channels, layout.mask_channels):
            problem = f"it draws {channels[0]} channels for masks of {channels[1]}, and the data has "
            problem += f"{layout.image_channels} and {layout.mask_channels}"
            raise BadInput(self.path, problem, "start from another model")
        known = {name: self.network[name] for name in NETWORK} | {"prediction": self.prediction, "init": self.origin}
        other = {name: value for name, value in chosen.items() if value is not None and value != known[name]}
        if other:
            told = ", ".join(f"{option(name)} {_shown(known[name])} (not {_shown(other[name])})" for name in other)
            raise BadInput(self.path, f"its model has {told}", "leave these options out, or start from another model")
        return known


def _shown(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def read_initial(path: str | os.PathLike[str]) -> Initial:
    """Reads a released or published model, a checkpoint, or the newest checkpoint of a run's folder.

    Raises:
        BadInput: there is none, it is damaged, or it has not the timesteps of a training.
    """
    path = newest_checkpoint(path)
    content = read_checkpoint(path)
    diffusion = diffusion_from(content, path, "ema" if "ema" in content else "model")
    with opened(path) as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    origin = f"{path.name}, SHA-256 {digest}"
    network: Any = diffusion.denoise_fn  # a `UNet3D`
    return Initial(path, origin, diffusion.state_dict(), network.config, diffusion.prediction)


def check_initial(config: TrainConfig, initial: Initial | None, begun: bool) -> None:
    """Checks that a run starts from the weights that its configuration names.

    Args:
        config: the run's.
        initial: the weights; a run that was `begun` needs none.
        begun: whether the run has a checkpoint.

    Raises:
        BadInput: it does not.
    """
    if (initial.origin if initial else "") != config.init and (initial or not begun):
        problem = f"the configuration's init is {config.init!r}, not {initial.origin if initial else ''!r}"
        raise BadInput("--init", problem, "give the file that it names")
