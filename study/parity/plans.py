"""The runs that show whether a setting costs quality: their trainings, subjects and evaluations."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from medddpm.checkpoints.files import read_checkpoint
from medddpm.data.grid import Size
from medddpm.errors import BadInput
from medddpm.switches import SETTINGS
from medddpm.training.config import TrainConfig
from medddpm.training.release import training_of


class SamplerSteps(NamedTuple):
    """A sampler and its number of steps."""

    sampler: str
    steps: int


FULL = SamplerSteps("ddpm", 250)
SAMPLERS: tuple[SamplerSteps, ...] = (
    FULL,
    *(SamplerSteps(sampler, steps) for sampler in ("ddim", "dpm++", "sde-dpm++") for steps in (10, 25, 50)),
)
BRATS = "brats"  # stands where a contrast does: the four-modality model
EMA_EVERY = 10
SPEC = "spec.json"  # the run's fields, in its folder
REDRAWN = Path(__file__).parents[2] / "figures/records/H200/phantom-flair-64/phantom-flair-64.safetensors"
"""The model that came with the package until it drew heads: 32 channels, FLAIR phantoms, with its card beside it."""


@dataclass(frozen=True)
class TrainingRun:
    """A model that is trained and evaluated in a process of its own. `training_run` makes one.

    Args:
        plan: the key of `PLANS` that it belongs to.
        config: of the training; `config.setting` is also the setting under which it is sampled.
        size: (H, W, D).
        contrast: of the phantom, or `BRATS`.
        steps: of training.
        samplers: draw its samples; each is evaluated.
        held_out: number of subjects it is evaluated on and never trained on; for `BRATS`, samples of the one case.
        subjects: number it is trained on.
        batch: volumes sampled at once.
        watch: steps between two held-out losses while it trains.
        watched: (subjects, timesteps) that each such loss averages over.
        shown: number of subjects whose slices the record keeps; 1 for volumes larger than 64³.
        snapshots: steps between two samples that are kept as it trains, a multiple of `watch`; 0 for none.
        checkpoint: evaluated in place of a training; empty if the plan needs one to be given.
        data: folder of a `BRATS` case.
    """

    plan: str
    config: TrainConfig
    size: Size
    contrast: str
    steps: int
    samplers: tuple[SamplerSteps, ...] = (FULL,)
    held_out: int = 16
    subjects: int = 128
    batch: int = 4
    watch: int = 500
    watched: tuple[int, int] = (16, 10)
    shown: int = 3
    snapshots: int = 0
    checkpoint: str | None = None
    data: str | None = None

    @property
    def setting(self) -> str:
        """A key of `SETTINGS`."""
        return self.config.setting

    @property
    def key(self) -> str:
        """Its name in records, and its folder's."""
        size = "x".join(map(str, dict.fromkeys(self.size)))
        width, seed = f"c{self.config.model_channels}", f"s{self.config.seed}"
        parts = [self.plan, self.setting.lower(), self.contrast, size, width, seed]
        if self.config.channel_mult is not None:
            parts.append("m" + "-".join(map(str, self.config.channel_mult)))
        return "_".join(parts)

    def write(self, path: Path) -> None:
        """Writes it as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def of(cls, described: dict[str, Any]) -> TrainingRun:
        """Makes the run that `asdict` or `write` described."""
        config = dict(described["config"])
        config["channel_mult"] = None if config["channel_mult"] is None else tuple(config["channel_mult"])
        known: dict[str, Any] = {name: tuple(described[name]) for name in ("size", "watched")}
        known["samplers"] = tuple(SamplerSteps(*pair) for pair in described["samplers"])
        return cls(**{**described, **known, "config": TrainConfig(**config)})


def training_run(
    plan: str, setting: str, seed: int, *, size: Size, contrast: str, steps: int, memory: float = 0.05, **known: Any
) -> TrainingRun:
    """Makes a run from fields of `TrainingRun` and `TrainConfig`; the parity runs have their own defaults.

    Args:
        plan, size, contrast, steps: as for `TrainingRun`.
        setting, seed: of the training.
        memory: half-life of the weights' average, as a share of the steps; at most the published one.
        known: further fields of either.
    """
    run_fields = {field.name: known.pop(field.name) for field in fields(TrainingRun) if field.name in known}
    training: dict[str, Any] = {
        "setting": setting, "seed": seed, "image_size": size[0], "num_res_blocks": 2 if contrast == BRATS else 1,
        "learning_rate": 1e-4, "accumulation": 1, "save_every": 0, "sample_every": 0, "keep": 1,
        "ema_decay": round(min(0.995, 0.5 ** (EMA_EVERY / max(1.0, memory * steps))), 4),
        "ema_every": EMA_EVERY, "ema_start": min(2000, steps // 4),
    }  # fmt: skip
    return TrainingRun(plan, TrainConfig(**{**training, **known}), size, contrast, steps, **run_fields)


def cube(side: int) -> Size:
    """Returns (side, side, side)."""
    return side, side, side


# With offset noise and norms of few groups the mask sets a sample's brightness; as published, chance sets it, under
# every setting. See `medddpm.diffusion.GaussianDiffusion` and 17_quality.
STEADY: dict[str, Any] = {"offset_noise": 0.1, "norm_groups": 8}
# At 128³ and one volume a step, the loss of `STEADY` trainings jumps back now and then, under OPT1 too, and one run
# ended so. Clipping makes the jumps smaller; with two volumes a step as well, none was seen: 21_samplers.
CALM: dict[str, Any] = {**STEADY, "clip_norm": 1.0}

# A plan takes settings, seeds and fields of `training_run` that replace its own, and returns runs.


def short(
    settings: Sequence[str] = ("OPT1", "FAST"), seeds: Iterable[int] = range(6), **changes: Any
) -> list[TrainingRun]:
    """Compares FAST with OPT1: both from several seeds, on FLAIR, which shows lesions best, with the published noise.

    Six seeds, not three: if pairs of runs are as far apart as two seeds are, the 90% interval of their mean difference
    reaches 2.4 of the seeds' deviations to either side with three pairs, more than any margin within the seeds' range,
    and 1.2 with six, whose range is 2.5. See `parity.tables.MARGINS` for the margins.
    """
    # The network of `REDRAWN`. A third of this rate leaves it far from done after as many steps.
    kind = {
        "plan": "short", "size": cube(64), "contrast": "flair", "steps": 4000, "model_channels": 32,
        "channel_mult": (1, 1, 2, 4), "learning_rate": 3e-4,
    }  # fmt: skip
    return _every(settings, seeds, kind, changes)


def offset(
    settings: Sequence[str] = ("OPT1", "FAST"), seeds: Iterable[int] = range(12), **changes: Any
) -> list[TrainingRun]:
    """Repeats `short` with `CALM`, so that the mask and not a seed sets a sample's brightness, and four volumes a step.

    With one volume, the lesions are half learned after 4000 steps. With four they still change as the training goes on,
    under any setting; an average over twice as many steps smooths that. Twelve seeds, because in seven of nine earlier
    pairs, with other plans, FAST drew the better lesions: chance does that one time in eleven, and twelve fresh pairs
    decide it.
    """
    return short(settings, seeds, **{"plan": "offset", "batch_size": 4, "memory": 0.1, **CALM, **changes})


def fp32(
    settings: Sequence[str] = ("OPT1", "FAST", "BASE"), seeds: Iterable[int] = range(12), **changes: Any
) -> list[TrainingRun]:
    """Repeats `offset` at 32³ with BASE beside the two, so that both are compared with FP32, without TF32's rounding.

    At 64³ a run under BASE takes a quarter of an hour of an H100, and twelve take three hours; 32³ takes an eighth.
    """
    return offset(settings, seeds, **{"plan": "fp32", "size": cube(32), **changes})


def paper(
    settings: Sequence[str] = tuple(SETTINGS), seeds: Iterable[int] = (0, 1, 2), **changes: Any
) -> list[TrainingRun]:
    """Trains under the paper's four settings and FAST at the published size, from one seed; OPT1 and FAST from more."""
    first, *others = seeds
    kind = {
        "plan": "paper", "size": cube(128), "contrast": "t1", "steps": 80, "samplers": (SamplerSteps("sde-dpm++", 25),),
        "held_out": 4, "watch": 40, "watched": (4, 5), "batch": 1,
    }  # fmt: skip
    pairs = [name for name in ("OPT1", "FAST") if name in settings]
    return [*_every(settings, [first], kind, changes), *_every(pairs, others, kind, changes)]


def long(settings: Sequence[str] = ("FAST", "OPT1"), seeds: Iterable[int] = (0,), **changes: Any) -> list[TrainingRun]:
    """Trains for long at the published size, with samples along the way; OPT1 takes eight times as long as FAST."""
    kind = {
        "plan": "long", "size": cube(128), "contrast": "flair", "steps": 16_000, **STEADY, "learning_rate": 2e-4,
        "watched": (8, 10), "held_out": 8, "batch": 1, "snapshots": 2000, "samplers": (SamplerSteps("sde-dpm++", 25),),
    }  # fmt: skip
    return _every(settings, seeds, kind, changes)


def clipped(settings: Sequence[str] = ("FAST",), seeds: Iterable[int] = (0,), **changes: Any) -> list[TrainingRun]:
    """Repeats the beginning of `long`, step for step, with clipped gradients, to see if its loss jumps back as well."""
    return long(settings, seeds, **{"plan": "clipped", "steps": 3000, "snapshots": 0, "clip_norm": 1.0, **changes})


def contrasts(settings: Sequence[str] = ("FAST",), seeds: Iterable[int] = (0,), **changes: Any) -> list[TrainingRun]:
    """Trains a model of T1 and one of T2; FLAIR's is that of `long`."""
    kind = {
        "plan": "contrasts", "size": cube(128), "steps": 4000, **CALM, "learning_rate": 2e-4, "batch_size": 2,
        "watch": 1000, "watched": (8, 10), "held_out": 8, "batch": 1,
    }  # fmt: skip
    return [run for name in ("t1", "t2") for run in _every(settings, seeds, {**kind, "contrast": name}, changes)]


def samplers(settings: Sequence[str] = ("FAST",), seeds: Iterable[int] = (0,), **changes: Any) -> list[TrainingRun]:
    """Compares steps and quality: every sampler from one trained model, a volume at a time as a user draws them."""
    kind = {
        "plan": "samplers", "size": cube(128), "contrast": "flair", "steps": 0, "samplers": SAMPLERS, "held_out": 8,
        "batch": 1, "watched": (8, 10), "checkpoint": "",
    }  # fmt: skip
    return _every(settings, seeds, kind, changes)


_DRAWN: dict[str, Any] = {
    "size": cube(64), "contrast": "flair", "steps": 0, "model_channels": 32, "subjects": 1,
}  # fmt: skip


def redrawn(
    settings: Sequence[str] = tuple(SETTINGS), seeds: Iterable[int] = (0,), **changes: Any
) -> list[TrainingRun]:
    """Samples one trained model, by default `REDRAWN`, under every setting, for the effect of sampling alone."""
    return _every(settings, seeds, {"plan": "redrawn", **_DRAWN, "checkpoint": str(REDRAWN)}, changes)


def redrawn_fp32(
    settings: Sequence[str] = tuple(SETTINGS), seeds: Iterable[int] = (0,), **changes: Any
) -> list[TrainingRun]:
    """Repeats `redrawn` with a model of FP32 weights, and keeps every subject's slices.

    The weights of `REDRAWN` are BF16 numbers, so FAST, which rounds weights to BF16, changes none of them. The model
    is a BASE run of the plan "fp32".
    """
    return _every(settings, seeds, {"plan": "redrawn_fp32", **_DRAWN, "checkpoint": "", "shown": 16}, changes)


def brats(settings: Sequence[str] = ("FAST",), seeds: Iterable[int] = (0,), **changes: Any) -> list[TrainingRun]:
    """Overfits the four-modality model to one case, to see if the mask steers it."""
    kind = {
        "plan": "brats", "size": cube(64), "contrast": BRATS, "steps": 3000, **CALM, "batch_size": 4,
        "learning_rate": 2e-4, "held_out": 4, "subjects": 1, "watch": 1000, "watched": (1, 10), "batch": 2,
    }  # fmt: skip
    return _every(settings, seeds, kind, changes)


_ALL = (short, offset, fp32, paper, long, clipped, contrasts, samplers, redrawn, redrawn_fp32, brats)
PLANS = {plan.__name__: plan for plan in _ALL}


def _every(
    settings: Sequence[str], seeds: Iterable[int], kind: dict[str, Any], changes: dict[str, Any]
) -> list[TrainingRun]:
    # Settings within seeds: a pair is complete before the next one begins.
    return [training_run(setting=name, seed=seed, **{**kind, **changes}) for seed in seeds for name in settings]


def planned(
    names: Sequence[str],
    *,
    settings: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    data: Path | None = None,
    checkpoint: Path | None = None,
    **changes: Any,
) -> list[TrainingRun]:
    """Makes the runs of plans, in the order in which they begin.

    Args:
        names: keys of `PLANS`.
        settings, seeds: in place of each plan's own.
        data: the BraTS folder.
        checkpoint: of "samplers", "redrawn" and "redrawn_fp32"; by default "redrawn" has `REDRAWN`.
        changes: fields of `training_run` in place of each plan's own; None keeps the plan's.

    Raises:
        BadInput: a plan lacks its case or checkpoint.
    """
    changes |= {"settings": settings, "seeds": seeds}
    plan_changes = {name: value for name, value in changes.items() if value is not None}
    named = [(name, run) for name in names for run in PLANS[name](**plan_changes)]
    _check_given(named, data, checkpoint)
    runs = []
    for _, run in named:
        if run.checkpoint is not None:
            run = _trained_as(Path(checkpoint or run.checkpoint), run)
        if run.contrast == BRATS and data is not None:
            run = replace(run, data=str(data.resolve()))
        runs.append(run)
    return list({run.key: run for run in runs}.values())


def _check_given(named: Sequence[tuple[str, TrainingRun]], data: Path | None, checkpoint: Path | None) -> None:
    """Refuses plans that lack a case or a checkpoint; names everything that is missing at once."""
    undrawn = [name for name, run in named if run.checkpoint is not None and not (checkpoint or run.checkpoint)]
    untrained = [name for name, run in named if run.contrast == BRATS and data is None]
    problems, remedies = [], []
    if undrawn:
        problems.append("there is no model to draw from")
        remedies.append("give --checkpoint F")
    if untrained:
        problems.append("there is no case to train on")
        remedies.append("give --data DIR with seg/ t1/ …")
    if problems:
        plans = ",".join(dict.fromkeys(undrawn + untrained))
        raise BadInput(f"--plan {plans}", " and ".join(problems), " and ".join(remedies))


def _trained_as(checkpoint: Path, run: TrainingRun) -> TrainingRun:
    """Returns the run with the checkpoint's model and, as far as the checkpoint or its folder has it, its training."""
    content = read_checkpoint(checkpoint)
    if "config" not in content or "size" not in content:
        raise BadInput(checkpoint, "it does not say its size", "give a checkpoint of `medddpm train`")
    folder = checkpoint.parent.parent  # RUN/checkpoints/step-….pt
    known: dict[str, Any] = content.get("training") or {}
    if not known and (folder / "run.json").is_file():
        known = training_of(folder)
    contrast = (known.get("phantom") or known.get("heads") or {}).get("contrast", run.contrast)
    if contrast == "all":
        raise BadInput(checkpoint, "it draws three contrasts at once, and a phantom has one", "give a model of one")
    model = content["config"]
    names = ("learning_rate", "offset_noise", "clip_norm", "batch_size", "accumulation")
    training = {name: known[name] for name in names if name in known}
    training |= {"model_channels": model["model_channels"], "norm_groups": model.get("norm_groups", 32)}
    height, width, depth = content["size"]
    return replace(
        run,
        config=replace(run.config, image_size=height, **training),
        size=(height, width, depth),
        contrast=contrast,
        checkpoint=str(checkpoint),
        steps=0,
    )
