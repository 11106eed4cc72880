"""Records of parity runs that nobody made: what the study's tables, figures and notebook are tested with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from medddpm.data.phantom import phantom_subject
from medddpm.switches import SETTINGS
from study.parity import results
from study.parity.evaluate import PLANES
from study.parity.plans import (
    TrainingRun,
    brats,
    clipped,
    contrasts,
    fp32,
    long,
    offset,
    paper,
    redrawn,
    redrawn_fp32,
    samplers,
    short,
)
from study.parity.slices import three_slices, where_most
from study.records import schemas

# What the reference's runs have on average, and how far a run lies from that.
LEVELS = {
    ("held_out_loss", "all", "all"): (0.04, 0.0004),
    ("psnr", "t1", "all"): (21.0, 0.05),
    ("ssim", "t1", "all"): (0.78, 0.002),
    ("ms_ssim_between", "t1", "all"): (0.60, 0.004),
    ("diversity", "t1", "all"): (0.62, 0.004),
    ("diversity_reference", "t1", "all"): (0.61, 0.0),
    ("wasserstein", "t1", "brain"): (0.03, 0.002),
    ("wasserstein", "t1", "lesion"): (0.05, 0.004),
    ("frechet", "all", "all"): (0.5, 0.03),
    ("dice", "all", "brain"): (0.97, 0.001),
    ("dice", "all", "lesion"): (0.8, 0.01),
    ("dice_reference", "all", "lesion"): (0.9, 0.0),
    ("dice_reference", "all", "brain"): (0.99, 0.0),
    ("lesion_contrast", "t1", "lesion"): (-0.11, 0.004),
    ("lesion_contrast_reference", "t1", "lesion"): (-0.12, 0.0),
}
STEPS = {
    "short": 40,
    "offset": 40,
    "fp32": 40,
    "paper": 30,
    "long": 100,
    "clipped": 40,
    "contrasts": 40,
    "brats": 40,
    "samplers": 0,
    "redrawn": 0,
    "redrawn_fp32": 0,
}


def quality_rows(run: TrainingRun, shift: float = 0.0) -> list[dict[str, object]]:
    """A run's rows; `shift` moves every metric by so many of its runs' deviations, the wrong way with few steps."""
    known = {
        "plan": run.plan, "run": run.key, "setting": run.setting, "contrast": run.contrast,
        "size": "x".join(map(str, run.size)), "width": run.config.model_channels, "seed": run.config.seed,
        "step": STEPS[run.plan],
    }  # fmt: skip
    rows: list[dict[str, object]] = []
    for sampler, steps in run.samplers:
        rng = np.random.default_rng([run.config.seed, list(SETTINGS).index(run.setting)])
        fewer = 0.0 if steps == 250 else {"ddim": 60.0, "dpm++": 25.0, "sde-dpm++": 30.0}[sampler] / steps
        for (metric, channel, tissue), (level, spread) in LEVELS.items():
            better = 1 if metric in ("psnr", "ssim", "dice") else -1
            value = level + spread * (rng.standard_normal() + shift - better * 4 * fewer)
            of_model = metric == "held_out_loss"
            by = {"sampler": None if of_model else sampler, "sampler_steps": 0 if of_model else steps}
            row = {**known, **by, "channel": channel, "tissue": tissue, "n": 16}
            rows.append({**row, "metric": metric, "value": value, "low": value - spread, "high": value + spread})
            if metric == "dice" and run.contrast == "brats":
                rows.append({**row, "metric": "dice_mirrored", "value": 0.6, "low": None, "high": None})
        row |= {"sampler": sampler, "sampler_steps": steps, "channel": "all", "tissue": "all"}
        times = {"value": 0.016 * steps, "low": 0.0159 * steps, "high": 0.0165 * steps}
        rows.append({**row, "metric": "seconds_a_volume", **times})
    unique = {(row["sampler"], row["sampler_steps"], row["metric"], row["tissue"]): row for row in rows}
    return list(unique.values())


def loss_rows(run: TrainingRun) -> list[dict[str, object]]:
    """A run's losses: the steps' leaps are the seed's, the settings lie a hair apart."""
    steps = STEPS[run.plan]
    known = {
        "plan": run.plan, "run": run.key, "setting": run.setting, "contrast": run.contrast,
        "size": "x".join(map(str, run.size)), "width": run.config.model_channels, "seed": run.config.seed,
    }  # fmt: skip
    leaps = np.random.default_rng(run.config.seed).lognormal(0, 0.2, steps)
    own = 1 + 1e-3 * len(run.setting) * (run.setting != "BASE")
    at = np.arange(1, steps + 1)
    rows: list[dict[str, object]] = [
        {**known, "part": "training", "step": int(step), "steps": 1, "loss": float(own * leap * 0.8 / step**0.5)}
        for step, leap in zip(at, leaps, strict=True)
    ]
    for step in (*at[9::10],):
        loss = own * (1 + 0.02 * run.config.seed) * 0.8 / step**0.5
        rows.append({**known, "part": "held-out", "step": int(step), "steps": 1, "loss": float(loss)})
    return rows


def every_run() -> list[TrainingRun]:
    """The runs of every plan."""
    several = [
        *short(seeds=range(4)),
        *offset(seeds=range(4)),
        *fp32(seeds=range(4)),
        *paper(),
        *long(),
        *clipped(),
        *contrasts(),
    ]
    return [*several, *brats(), *samplers(), *redrawn(), *redrawn_fp32()]


def tables(runs: list[TrainingRun], shift: float = 0.0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Quality and losses of runs; `shift` is FAST's, as in `quality_rows`."""
    quality = [row for run in runs for row in quality_rows(run, shift if run.setting == "FAST" else 0.0)]
    loss = [row for run in runs for row in loss_rows(run)]
    numbers = {"value": float, "low": float, "high": float}
    return pd.DataFrame(quality).astype(numbers), pd.DataFrame(loss, columns=list(schemas.LOSS.columns))


def slices(runs: list[TrainingRun]) -> dict[str, np.ndarray]:
    """Real phantoms in place of samples, at 32³."""
    found: dict[str, np.ndarray] = {}
    for index in range(2):
        subject, other = (phantom_subject(n, (32, 32, 32), seed=1) for n in (index, index + 2))
        at = where_most(subject.labels == 2)

        def put(name: str, volume: np.ndarray, scale: float, at: list[int] = at) -> None:
            grey = (volume * scale).clip(0, 255).astype(np.uint8)
            found.update({f"{name}/{p}": cut for p, cut in zip(PLANES, three_slices(grey, at), strict=True)})

        for run in runs:
            names = ["t1", "t1ce", "t2", "flair"] if run.contrast == "brats" else [run.contrast]
            subjects = f"{run.contrast}-{'x'.join(map(str, run.size))}"
            for kind in ("", "mirrored-") if run.contrast == "brats" else ("",):
                put(f"{kind}mask/{subjects}/-/labels/{index}", subject.labels, 1)
                for name in names:
                    own = "t1" if name == "t1ce" else name
                    put(f"{kind}truth/{subjects}/-/{name}/{index}", getattr(subject, own), 220)
                    for sampler, steps in run.samplers:
                        what = f"{kind}sample/{run.key}/{sampler}-{steps}/{name}/{index}"
                        put(what, getattr(other, own), 200)
            if run.snapshots and not index:
                for step in range(10, 101, 10):
                    put(f"watch/{run.key}/{step}/{run.contrast}/0", subject.t1, 2.2 * step)
    return found


def write(tables_folder: Path, runs: list[TrainingRun], shift: float = 0.0) -> Path:
    """The runs' records in a folder."""
    quality, loss = tables(runs, shift)
    runs_meta = {run.key: {"step": STEPS[run.plan], "commit": None} for run in runs}
    meta = {"gpu": "NVIDIA H200", "driver": "580", "torch": "2.11.0", "cudnn": 91900, "date": "2026-01-01T00:00:00"}
    results.join(tables_folder, quality, loss, slices(runs), {**meta, "runs": runs_meta})
    return tables_folder
