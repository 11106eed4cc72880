"""The runs that show whether a setting costs quality: what is trained, how it is judged, how long it should take."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from medddpm.checkpoints import shipped
from medddpm.data.grid import Size
from medddpm.errors import BadInput
from medddpm.switches import SETTINGS
from medddpm.training.config import TrainConfig

Chain = tuple[str, int]
"""A sampler and its steps."""

FULL: Chain = ("ddpm", 250)
CHAINS: tuple[Chain, ...] = (
    FULL,
    *((sampler, steps) for sampler in ("ddim", "dpm++", "sde-dpm++") for steps in (10, 25, 50)),
)
BRATS = "brats"  # stands where a contrast does: the four-modality model

# Measured on one H200 at 128³ and 64 channels, batch 1 (figures/records/H200/bench.csv), ms.
STEP_MS = {"BASE": 1220.0, "OPT1": 230.0, "OPT2": 1370.0, "OPT12": 336.0, "FAST": 39.0}
FORWARD_MS = {"BASE": 197.0, "OPT1": 89.0, "OPT2": 257.0, "OPT12": 128.0, "FAST": 12.8}
START_S = 30.0  # a process's: imports, CUDA, kernels compiled or found again, a graph captured
JUDGE_S = 0.5  # of a volume of 64³, its share of the metrics


@dataclass(frozen=True)
class Run:
    """A model trained and judged, in a process of its own.

    Args:
        plan: whose it is, a key of `PLANS`.
        setting: a key of `SETTINGS`, under which it is trained and sampled.
        size: (H, W, D).
        channels: base width.
        mult: of the width at each level; None for the published ones of that size.
        groups: of every norm; 32 as published.
        contrast: of the phantom, or `BRATS`.
        seed: of weights, order, timesteps and noise.
        steps: of training.
        learning_rate: Adam's.
        accumulation: micro-steps of a step.
        offset_noise: of `medddpm.diffusion.GaussianDiffusion`; 0 as published.
        clip_norm: of `medddpm.training.run_folder.TrainConfig`; 0 as published.
        volumes: of a micro-step.
        memory: half-life of the weights' average, as a share of the run; at most the published one.
        chains: how it is sampled; all are judged.
        held_out: subjects that it is judged on and never trained on; of `BRATS`, samples of the one case.
        subjects: trained on.
        batch: volumes sampled at once.
        watch: steps between two held-out losses while it trains.
        watched: held-out subjects and timesteps that such a loss is the mean of.
        snapshots: steps between two samples that are kept as it trains, a multiple of `watch`; 0 for none.
        checkpoint: judged in place of a training; empty where a plan leaves it to be given.
        data: folder of a `BRATS` case.
    """

    plan: str
    setting: str
    size: Size
    channels: int
    contrast: str
    seed: int
    steps: int
    learning_rate: float = 1e-4
    accumulation: int = 1
    offset_noise: float = 0.0
    clip_norm: float = 0.0
    volumes: int = 1
    memory: float = 0.05
    chains: tuple[Chain, ...] = (FULL,)
    held_out: int = 16
    subjects: int = 128
    batch: int = 4
    watch: int = 500
    watched: tuple[int, int] = (16, 10)
    snapshots: int = 0
    checkpoint: str | None = None
    data: str | None = None
    mult: tuple[int, ...] | None = None
    groups: int = 32

    @property
    def key(self) -> str:
        """Its name, and its folder's."""
        size = "x".join(map(str, dict.fromkeys(self.size)))
        parts = [self.plan, self.setting.lower(), self.contrast, size, f"c{self.channels}", f"s{self.seed}"]
        if self.mult is not None:
            parts.append("m" + "-".join(map(str, self.mult)))
        return "_".join(parts)

    @property
    def config(self) -> TrainConfig:
        """Of `medddpm.training.trainer`."""
        every = 10
        decay = min(0.995, 0.5 ** (every / max(1.0, self.memory * self.steps)))
        return TrainConfig(
            setting=self.setting,
            image_size=self.size[0],
            model_channels=self.channels,
            channel_mult=self.mult,
            norm_groups=self.groups,
            num_res_blocks=2 if self.contrast == BRATS else 1,
            learning_rate=self.learning_rate,
            accumulation=self.accumulation,
            offset_noise=self.offset_noise,
            clip_norm=self.clip_norm,
            batch_size=self.volumes,
            ema_decay=round(decay, 4),
            ema_every=every,
            ema_start=min(2000, self.steps // 4),
            seed=self.seed,
            save_every=0,
            sample_every=0,
            keep=1,
        )

    def write(self, path: Path) -> None:
        """Describes it as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def of(cls, described: dict[str, Any]) -> Run:
        """The run that `asdict` or `write` described."""
        chains = tuple((str(sampler), int(steps)) for sampler, steps in described["chains"])
        mult = None if described.get("mult") is None else tuple(described["mult"])
        known = {"chains": chains, "size": tuple(described["size"]), "watched": tuple(described["watched"])}
        return cls(**{**described, **known, "mult": mult})


def cube(side: int) -> Size:
    """(side, side, side)."""
    return side, side, side


# With offset noise and norms of few groups the mask sets a sample's brightness; as published it is luck, under every
# setting. See `medddpm.diffusion.GaussianDiffusion` and 17_quality.
STEADY: dict[str, Any] = {"offset_noise": 0.1, "groups": 8}
# At 128³ and one volume a step, trainings of `STEADY` leap back now and then, OPT1's too, and one ended. Clipping makes
# the leaps smaller; with two volumes a step besides, none was seen: 17_quality.
CALM: dict[str, Any] = {**STEADY, "clip_norm": 1.0}


def short(settings: Sequence[str] = ("OPT1", "FAST"), seeds: Iterable[int] = range(6)) -> list[Run]:
    """Whether FAST learns and draws what OPT1 does: both from several seeds, on FLAIR, which shows lesions best.

    Trained with the published noise. Six seeds, not three: where pairs of runs are as far apart as two seeds are, the
    90% interval of their mean difference reaches 2.4 of the seeds' deviations to either side with three pairs, which no
    margin of the seeds' own range can hold, and 1.2 with six, where that range is 2.5. See `parity.tables.MARGINS` for
    what is asked.
    """
    # The network that travels with the package. A third of this rate leaves it far from done after as many steps.
    kind = {"learning_rate": 3e-4, "mult": (1, 1, 2, 4)}
    every = [
        Run("short", name, cube(64), 32, "flair", seed, 4000, **kind)  # type: ignore[arg-type]
        for seed in seeds
        for name in settings
    ]
    return sorted(every, key=lambda run: run.seed)  # a pair complete before the next is begun


def offset(settings: Sequence[str] = ("OPT1", "FAST"), seeds: Iterable[int] = range(12)) -> list[Run]:
    """The same with `CALM`, so that the mask sets a sample's brightness and not a seed, and four volumes a step.

    With one volume, the lesions are half learned after 4000 steps. With four they still change as the training goes on,
    which is no matter of the setting: an average over twice as many steps takes some of that out. Twelve seeds, because
    of nine pairs trained before, with other plans, FAST drew the better lesions in seven: chance does that one time in
    eleven, and twelve fresh pairs tell which it was.
    """
    return [replace(run, plan="offset", volumes=4, memory=0.1, **CALM) for run in short(settings, seeds)]


def paper(settings: Sequence[str] = tuple(SETTINGS), seeds: Iterable[int] = (0, 1, 2)) -> list[Run]:
    """The paper's four settings and FAST at the published size, from one seed; OPT1 and FAST from others too."""
    first, *others = seeds
    kind = {"chains": (("sde-dpm++", 25),), "held_out": 4, "watch": 40, "watched": (4, 5), "batch": 1}
    slowest_first = sorted(settings, key=lambda name: -STEP_MS[name])
    pairs = [(name, first) for name in slowest_first]
    pairs += [(name, seed) for seed in others for name in ("OPT1", "FAST") if name in settings]
    return [Run("paper", name, cube(128), 64, "t1", seed, 80, **kind) for name, seed in pairs]  # type: ignore[arg-type]


def long(settings: Sequence[str] = ("FAST", "OPT1"), seeds: Iterable[int] = (0,)) -> list[Run]:
    """One long training at the published size, with samples along the way; OPT1 gets as far as it gets in the time."""
    kind = {
        **STEADY, "learning_rate": 2e-4, "watch": 500, "watched": (8, 10), "held_out": 8, "batch": 1,
        "snapshots": 2000, "chains": (("sde-dpm++", 25),),
    }  # fmt: skip
    return [Run("long", name, cube(128), 64, "flair", seed, 16_000, **kind) for seed in seeds for name in settings]


def clipped(settings: Sequence[str] = ("FAST",), seeds: Iterable[int] = (0,)) -> list[Run]:
    """The beginning of the long training, step for step, with clipped gradients: does its loss leap as that one's?"""
    return [replace(run, plan="clipped", steps=3000, snapshots=0, clip_norm=1.0) for run in long(settings, seeds)]


def contrasts(
    settings: Sequence[str] = ("FAST",), seeds: Iterable[int] = (0,), contrasts: Sequence[str] = ("t1", "t2")
) -> list[Run]:
    """A model a contrast, for Figure 1; FLAIR's is the long one."""
    kind = {**CALM, "learning_rate": 2e-4, "volumes": 2, "watch": 1000, "watched": (8, 10), "held_out": 8, "batch": 1}
    return [
        Run("contrasts", name, cube(128), 64, contrast, seed, 4000, **kind)
        for seed in seeds
        for name in settings
        for contrast in contrasts
    ]


def samplers(settings: Sequence[str] = ("FAST",), seeds: Iterable[int] = (0,)) -> list[Run]:
    """Steps against quality: every chain from one trained model, a volume at a time as a user draws them."""
    kind = {"chains": CHAINS, "held_out": 8, "batch": 1, "watched": (8, 10), "checkpoint": ""}
    return [
        Run("samplers", name, cube(128), 64, "flair", seed, 0, **kind)  # type: ignore[arg-type]
        for seed in seeds
        for name in settings
    ]


def redrawn(settings: Sequence[str] = tuple(SETTINGS), seeds: Iterable[int] = (0,)) -> list[Run]:
    """One trained model drawn under every setting: what drawing alone changes. By default that of the package."""
    kind = {"held_out": 16, "subjects": 1, "checkpoint": str(shipped.weights())}
    return [Run("redrawn", name, cube(64), 32, "flair", seed, 0, **kind) for seed in seeds for name in settings]  # type: ignore[arg-type]


def brats(settings: Sequence[str] = ("FAST",), seeds: Iterable[int] = (0,)) -> list[Run]:
    """The four-modality model overfitting one case: does the mask steer it?"""
    kind = {"held_out": 4, "subjects": 1, "watch": 1000, "watched": (1, 10), "learning_rate": 2e-4, "batch": 2}
    kind |= {**CALM, "volumes": 4}
    return [Run("brats", name, cube(64), 64, BRATS, seed, 3000, **kind) for seed in seeds for name in settings]  # type: ignore[arg-type]


PLANS = {plan.__name__: plan for plan in (short, offset, paper, long, clipped, contrasts, samplers, redrawn, brats)}


def planned(
    names: Sequence[str],
    *,
    settings: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    data: str | None = None,
    checkpoint: Path | None = None,
    only: Sequence[str] = (),
    **changes: Any,
) -> list[Run]:
    """The runs of plans, in the order in which they are begun.

    Args:
        names: keys of `PLANS`.
        settings, seeds: in place of each plan's own.
        data: the BraTS folder.
        checkpoint: what "samplers" and "redrawn" draw from; the latter by default from the model of the package.
        only: runs whose key contains one of these.
        changes: fields of `Run` that every run gets, None for the plan's own.

    Raises:
        BadInput: a plan lacks what it needs, or no run is left.
    """
    given: dict[str, Any] = {"settings": settings, "seeds": seeds}
    given = {name: value for name, value in given.items() if value is not None}
    changes = {name: value for name, value in changes.items() if value is not None}
    runs = []
    for name in names:
        for run in PLANS[name](**given):
            run = replace(run, **changes)
            if run.checkpoint is not None:
                if not (source := checkpoint or run.checkpoint):
                    raise BadInput(f"--plan {name}", "no model to draw from", "give --checkpoint F")
                run = _trained_as(Path(source), run)
            if run.contrast == BRATS:
                if data is None:
                    raise BadInput("--plan brats", "no case to train on", "give --data DIR with seg/ t1/ t1ce/ …")
                run = replace(run, data=data)
            runs.append(run)
    chosen = {run.key: run for run in runs if not only or any(part in run.key for part in only)}
    if not chosen:
        raise BadInput("--only", f"no run's key contains {' or '.join(only)}", "see the keys with --dry-run")
    return list(chosen.values())


def _trained_as(checkpoint: Path, run: Run) -> Run:
    """The run with what the checkpoint's model is and, as far as it or its run's folder tells, how it was trained."""
    from medddpm.checkpoints.files import read_checkpoint

    content = read_checkpoint(checkpoint)
    if "config" not in content or "size" not in content:
        raise BadInput(checkpoint, "it does not say its size", "give a checkpoint of `medddpm train`")
    height, width, depth = content["size"]
    config = content["config"]
    model = {"channels": config["model_channels"], "groups": config.get("norm_groups", 32)}
    if "training" in content:  # of a released model
        known = {**content["training"], **content["training"].get("phantom", {})}
        known["volumes"] = known["batch_size"]
    else:
        specs = [folder / "spec.json" for folder in checkpoint.parents[2:3]]
        known = json.loads(specs[0].read_text()) if specs and specs[0].is_file() else {}
    names = ("contrast", "learning_rate", "offset_noise", "clip_norm", "volumes", "accumulation")
    training = {name: known[name] for name in names if name in known}
    return replace(run, size=(height, width, depth), checkpoint=str(checkpoint), steps=0, **model, **training)


def seconds(run: Run) -> tuple[float, float]:
    """What training and judging should take on an H200, from the speeds measured there."""
    work = math.prod(run.size) / 128**3
    wide = (run.channels / 64) ** 1.5  # between traffic, which grows as the width, and products, as its square
    blocks = 1.7 if run.contrast == BRATS else 1.0
    fast = SETTINGS[run.setting].fast
    step = max(STEP_MS[run.setting] * work * wide * blocks * run.volumes, 4.0 if fast else 25.0) * run.accumulation
    forward = max(FORWARD_MS[run.setting] * work * wide * blocks, 1.5 if fast else 8.0)
    watches = run.steps // run.watch if run.steps else 0
    training = run.steps * step + watches * math.prod(run.watched) * max(forward, 10.0)
    drawing = run.held_out * forward * sum(steps for _, steps in run.chains)
    judging = 1e3 * JUDGE_S * (math.prod(run.size) / 64**3) * run.held_out * len(run.chains)
    return START_S + training / 1e3, (drawing + judging) / 1e3


def makespan(runs: Sequence[Run], gpus: int) -> float:
    """Seconds until the last of the runs should be done, each begun on the first GPU that is free."""
    free = [0.0] * max(1, gpus)
    for run in runs:
        free.sort()
        free[0] += sum(seconds(run))
    return max(free)
