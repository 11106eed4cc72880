"""The arms of the recipe's table: a plain training, each component added to it alone, and what they make together.

The recipes of `medddpm train` are arms as well.

The sources of the components stand where they are made: `medddpm.schedules`, `medddpm.training.rates`,
`medddpm.training.augmentation` and `medddpm.diffusion`. Numbers here that name no source are choices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from medddpm.data.disk_cache import DiskCache
from medddpm.data.grid import Size
from medddpm.data.heads import Heads
from medddpm.data.layouts import Layout
from medddpm.data.synthetic import ContrastOrAll, layout_of
from medddpm.training.config import TrainConfig
from medddpm.training.recipes import fields_of
from study.brains.settings import CHOICES, switches_of
from study.brains.subjects import HELD_OUT, TRAINED

Sampling = tuple[str, int]
"""A sampler and its evaluations of the network."""

REFERENCE = "plain"
PLAIN: Mapping[str, Any] = {"learning_rate": 2e-4, "batch_size": 8, "accumulation": 1, "norm_groups": 8}
"""The fields of `TrainConfig` that differ from the published ones in every arm. Trainings of minutes need a larger
rate and more volumes a step than the published 1e-5 and 2."""

PARTS: Mapping[str, Mapping[str, Any]] = {
    "cosine": {"warm_up": 200, "decay": "cosine"},
    "ema": {"ema_share": 0.1},
    "flips": {"flips": True},
    "deform": {"deform": 0.02},
    "offset": {"offset_noise": 0.1},
    "clip": {"clip_norm": 1.0},
    "min-snr": {"weighting": "min-snr"},
    "l1": {"loss": "l1"},
    "l2": {"loss": "l2"},
    "velocity": {"prediction": "velocity", "loss": "l2"},
    "flow": {"prediction": "flow", "loss": "l2"},
    "density": {"density": "logit-normal"},
    "wide": {},
    "one-volume": {"batch_size": 1},
    "fast-rate": {"learning_rate": 4e-4},
    "slim": {"channel_mult": (1, 1, 2, 4)},
    "ours": fields_of("ours", {}, steps=0, most=lambda: 8),
    "published": {name: getattr(TrainConfig, name) for name in PLAIN if name != "norm_groups"},
}
"""Components, as fields of `TrainConfig`. Velocity and flow come with the squared error, as published (Salimans & Ho
2022; Liu et al. 2023). A slim network has fewer channels at its lower levels, as the model that travels with the
package has. The last two are whole recipes, on a network of the plain arm's groups."""

WIDER = {"wide": 2}
"""The factor of a component on the base width."""

ALL = ("cosine", "ema", "flips", "flow")
"""The components that are combined: those that took nothing from the image in first trainings of a minute."""

COMPARED: Mapping[str, Sequence[str]] = {
    REFERENCE: (),
    **{
        part: (part,)
        for part in (
            "cosine", "ema", "flips", "deform", "offset", "clip", "min-snr", "l2", "velocity", "flow", "wide",
            "one-volume",
        )
    },
    "velocity-l1": ("velocity", "l1"),
    "flow-l1": ("flow", "l1"),
    "flow-density": ("flow", "density"),
    "all": ALL,
    **{f"all-but-{left_out}": tuple(part for part in ALL if part != left_out) for left_out in ALL},
    "all-velocity": ("cosine", "ema", "flips", "velocity"),
    "all-deform": (*ALL, "deform"),
    "all-density": (*ALL, "density"),
    "all-wide": (*ALL, "wide"),
    "all-fast-rate": (*ALL, "fast-rate"),
}  # fmt: skip
"""The `PARTS` of each arm of the table, later ones over earlier ones, in the order in which they are trained."""

ARMS: Mapping[str, Sequence[str]] = {
    **COMPARED,
    "all-slim": (*ALL, "slim"),
    **{recipe: (recipe,) for recipe in ("ours", "published")},
}
"""The `PARTS` of each arm: those of the table, a network whose weights travel, and the recipes of `medddpm train`."""

LATER = {"setting"}
"""The fields of `Training` that results of earlier commits lack."""

SAMPLINGS: tuple[Sampling, ...] = (("dpm++", 20), ("ddim", 50), ("ddim", 20))


@dataclass(frozen=True)
class Training:
    """A training of an arm, and what is drawn from it. A process of `study.brains.trainer` carries it out.

    Args:
        arm: of `ARMS`.
        seed: of weights, order, timesteps and noise.
        contrast: of the heads; "all" for a joint model of the three.
        side: of their volumes.
        channels: the base width, a multiple of 8; the wide arms have twice as many.
        heads: trained on, the first of seed `TRAINED`.
        held_out: heads that it is measured on, the first of seed `HELD_OUT`.
        seconds: that the training should take; the machine's speed says how many steps that is.
        steps: of the training; 0 for as many as take `seconds`.
        drawn: samples, for the masks of the first held-out heads.
        samplings: draw them.
        keeps_weights: leaves the averaged weights as a released model.
        setting: of `study.brains.settings.CHOICES`; empty for FAST on a GPU and BASE on a CPU.
    """

    arm: str
    seed: int = 0
    contrast: ContrastOrAll = "t1"
    side: int = 64
    channels: int = 32
    heads: int = 768
    held_out: int = 32
    seconds: float = 120.0
    steps: int = 0
    drawn: int = 16
    samplings: tuple[Sampling, ...] = SAMPLINGS
    keeps_weights: bool = False
    setting: str = ""

    @property
    def key(self) -> str:
        """Its name, and its folder's."""
        length = f"{self.steps}steps" if self.steps else f"{self.seconds:g}s"
        key = f"{self.arm}_{self.contrast}_{self.side}_c{self.channels}_h{self.heads}_{length}_s{self.seed}"
        return f"{key}_{self.setting.lower()}" if self.setting else key

    @property
    def size(self) -> Size:
        """(H, W, D)."""
        return self.side, self.side, self.side

    @property
    def layout(self) -> Layout:
        """That of its heads."""
        return layout_of(self.contrast)

    def config(self, setting: str, steps: int) -> TrainConfig:
        """Returns the configuration of its training.

        Args:
            setting: of `study.brains.settings.CHOICES`.
            steps: of the training in all.
        """
        parts = ARMS[self.arm]
        chosen: dict[str, Any] = dict(PLAIN)
        for part in parts:
            chosen |= PARTS[part]
        if chosen.get("decay", TrainConfig.decay) != "none":
            chosen["length"] = steps
        width = self.channels
        for part in parts:
            width *= WIDER.get(part, 1)
        return TrainConfig(
            setting=switches_of(setting), image_size=self.side, model_channels=width, seed=self.seed, save_every=0,
            sample_every=0, **chosen,
        )  # fmt: skip

    def volumes(self, folder: Path) -> tuple[DiskCache, DiskCache]:
        """Returns the heads that it is trained on, and those held out, stored in a folder."""
        trained, held_out = (
            DiskCache(Heads(count, self.size, self.contrast, seed, cache_gib=0), folder)
            for count, seed in ((self.heads, TRAINED), (self.held_out, HELD_OUT))
        )
        return trained, held_out

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Training:
        """Makes the training that `asdict` described, also after a passage through JSON, or at an earlier commit.

        Raises:
            ValueError: it describes none.
        """
        names = {field.name for field in fields(cls)}
        if not names - LATER <= set(described) <= names or described["arm"] not in ARMS:
            raise ValueError("no training")
        if described.get("setting", "") not in ("", *CHOICES):
            raise ValueError("no setting")
        samplings = tuple((str(sampler), int(evaluations)) for sampler, evaluations in described["samplings"])
        return cls(**{**described, "samplings": samplings})

    def described(self) -> dict[str, Any]:
        """Returns its fields as JSON has them."""
        return {**asdict(self), "samplings": [list(sampling) for sampling in self.samplings]}


def planned(
    arms: Iterable[str], seeds: Iterable[int], contrasts: Iterable[ContrastOrAll], **known: Any
) -> list[Training]:
    """Returns trainings in the order in which they are made: a seed of all arms before the next seed.

    Args:
        arms, seeds, contrasts: each combination is a training.
        known: further fields of `Training`.
    """
    arms, contrasts = list(arms), list(contrasts)
    each = (Training(arm, seed, contrast, **known) for seed in seeds for contrast in contrasts for arm in arms)
    return list(dict.fromkeys(each))
