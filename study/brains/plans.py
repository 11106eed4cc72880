"""Plans of trainings: their order, how long each should take on one H200, and how far a plan has come."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from medddpm.data.synthetic import ContrastOrAll
from study.brains.arms import COMPARED, Training, planned
from study.brains.settings import AUTOCAST
from study.brains.trainer import MARKS, RATIOS

# How long a training takes

STEPS_A_SECOND = {32: 37.0, 64: 16.9}
"""Of FAST at 64³ with eight volumes a step, by the base width, measured on an H200."""

SLOWER = {"FAST": 1.0, "OPT1": 6.0, AUTOCAST: 4.5, "OPT12": 8.8, "BASE": 32.2, "OPT2": 36.0}
"""The time of a step under a setting over that under FAST, in the H200's bench records: 128³, 64 channels, a volume."""

LAUNCHING = 0.04
"""Seconds of a micro-step at least, where the host launches each kernel: a choice, half of what eager FAST takes."""

EVALUATION = 0.4
"""The time of an evaluation over that of a training step: 0.16 (BASE) to 0.43 (autocast) in those records."""

AROUND = 60.0
"""Seconds that a job takes besides: start, compilation, drawing the heads. A choice, which the time of the first jobs
corrects upwards."""


def expected(training: Training) -> float:
    """Returns the seconds that the job of a training should take on one H200, from its start to its last sample."""
    setting = training.setting or "FAST"
    config = training.config(setting, 1)
    (narrow, faster), (wide, slower) = STEPS_A_SECOND.items()
    width = math.log(faster / slower) / math.log(wide / narrow)  # how a step's time grows with the channels
    volume = SLOWER[setting] / faster / 8 * (training.side / 64) ** 3 * (config.model_channels / narrow) ** width
    least = 0.0 if setting == "FAST" else LAUNCHING
    step = config.accumulation * max(config.batch_size * volume, least)
    evaluations = training.held_out * len(RATIOS) * (len(MARKS) + 2)  # errors of the average at each mark, and of both
    evaluations += training.drawn * sum(number for _, number in training.samplings)
    return AROUND + (training.steps * step or training.seconds) + evaluations * EVALUATION * volume


# The plans

HEADS = 2048
"""That the models are trained on. In a first joint training of 28 000 steps on 768 (32 channels, flips) the held-out
error of x_0 at the ratios 5 and 20 rose by 5 and 7% in the last quarter, where that at 1 and less still fell."""

DRAWN = {32: 24, 64: 24, 128: 8}
"""Samples of a training by its side. An archive of 24 noisy ones takes 5 MiB at 64³, one of 8 takes 14 at 128³; a tar
has room for 15."""

MODELS: tuple[dict[str, Any], ...] = (
    {"contrast": "t1", "channels": 64},
    {"contrast": "t2", "channels": 64},
    {"contrast": "flair", "channels": 64},
    {"arm": "all-slim", "contrast": "all", "keeps_weights": True},
    {"contrast": "all", "channels": 64},
    {"contrast": "t1", "channels": 64, "side": 128, "drawn": DRAWN[128], "seconds": 1080.0},
)
"""The models of the plan `models`. The weights of the slim one, 7.3 million, take 14 MiB in BF16; those of 64 channels
75, more than a lent machine sends back. 18 minutes at 128³ are an early training."""

COMPARISONS: tuple[tuple[str, int, int, tuple[str, ...]], ...] = (
    ("ours", 64, 4500, ("FAST", AUTOCAST, "OPT1")),
    ("ours", 32, 6000, ("BASE", "FAST", "OPT1", "OPT2")),
    ("published", 32, 6000, ("BASE", "FAST", "OPT1", "OPT2")),
    ("ours", 128, 500, ("FAST", "OPT1")),
)
"""Arm, side, steps and settings of the plan `equivalence`; the first setting is paired with each of the others.

The steps rest on `STEPS_A_SECOND` and `SLOWER`: under the slowest setting of each comparison a job should take 9 to 14
minutes on an H200 (`expected`), and fits 20 if it is a third slower. After 4 500 steps of that width samples of a
phantom had callosum and cerebellum. In float32 64³ would take an hour and more a seed: BASE is compared at 32³. 500
steps at 128³ are an early training. A result names its arm, not the arm's fields: where a recipe changes, leave earlier
results out.
"""


def recipe(
    seeds: Sequence[int] = (0, 1), arms: Iterable[str] = tuple(COMPARED), contrasts: Iterable[ContrastOrAll] = ("t1",),
    **changes: Any,
) -> list[Training]:  # fmt: skip
    """Returns every arm of the recipe's table for equal times."""
    return planned(arms, seeds, contrasts, **changes)


def models(seeds: Sequence[int] = (0,), **changes: Any) -> list[Training]:
    """Returns the models that are shown, by everything that makes samples better, ten minutes each.

    After 5.6 minutes 23 of 24 samples of the slim one had the anatomy of a head (23_brains).
    """
    known = {"arm": "all", "seconds": 600.0, "heads": HEADS, "drawn": DRAWN[64]}
    return [Training(seed=seed, **{**known, **model, **changes}) for seed in seeds for model in MODELS]


def equivalence(seeds: Sequence[int] = tuple(range(6)), **changes: Any) -> list[Training]:
    """Returns trainings that differ in their setting alone, for equal steps: all of a seed before the next seed."""
    known = {"samplings": (("dpm++", 20),)}
    return [
        Training(
            arm, seed, **{**known, "side": side, "steps": steps, "drawn": DRAWN[side], "setting": setting, **changes}
        )
        for seed in seeds
        for arm, side, steps, settings in COMPARISONS
        for setting in settings
    ]


PLANS = {plan.__name__: plan for plan in (recipe, models, equivalence)}


def trainings_of(plan: str, **changes: Any) -> list[Training]:
    """Returns a plan's trainings in the order in which they are made.

    Args:
        plan: of `PLANS`.
        changes: seeds, and fields of `Training`, in place of the plan's; None keeps the plan's. Of the plan `recipe`
            also arms and contrasts.
    """
    chosen = PLANS[plan](**{name: value for name, value in changes.items() if value is not None})
    possible = [replace(training, drawn=min(training.drawn, training.held_out)) for training in chosen]
    return list(dict.fromkeys(possible))


# How far a plan has come


def pairs(trainings: Sequence[Training]) -> list[tuple[Training, Training]]:
    """Returns the pairs that differ in their setting alone: the first training of a group with each later one."""
    groups: dict[Training, list[Training]] = {}
    for training in trainings:
        groups.setdefault(replace(training, setting=""), []).append(training)
    return [(first, other) for first, *others in groups.values() for other in others]


def progress(trainings: Sequence[Training], waiting: Sequence[Training]) -> str:
    """Returns how many trainings have results, and how many pairs are complete, with a line for each comparison.

    Args:
        trainings: of a plan.
        waiting: those without a result.
    """
    hours = sum(map(expected, waiting)) / 3600
    left = f"; the others should take {hours:.1f} h on one H200" if waiting else ""
    lines = [f"{len(trainings) - len(waiting)} of {len(trainings)} trainings have results{left}"]
    lacking = set(waiting)
    compared: dict[str, list[tuple[int, bool]]] = {}
    for first, other in (every := pairs(trainings)):
        length = f"{first.steps} steps" if first.steps else f"{first.seconds:g} s"
        name = f"{first.arm} {first.contrast} {first.side}³ {length}: {first.setting} and {other.setting}"
        compared.setdefault(name, []).append((first.seed, not lacking & {first, other}))
    if every:
        complete = sum(there for seeds in compared.values() for _, there in seeds)
        lines.append(f"{complete} of {len(every)} pairs are complete")
    for name, seeds in compared.items():
        whole = [str(seed) for seed, there in seeds if there]
        lines.append(f"  {name}: {len(whole)} of {len(seeds)}" + (f", seeds {', '.join(whole)}" if whole else ""))
    return "\n".join(lines)
