"""The program that `study trainings` starts for each training: trains an arm, measures it and draws samples.

It leaves result.json in its folder once it is trained, marked as partial until the samples are drawn; the samples as
`study judge` reads them; and, where asked for, the averaged weights as a released model.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from medddpm.checkpoints import released
from medddpm.data.volumes import Volumes
from medddpm.diffusion import GaussianDiffusion
from medddpm.errors import BadInput
from medddpm.fast.graphs import cuda_graphs
from medddpm.measure.machine import now
from medddpm.noise import normal
from medddpm.runtime.exits import end
from medddpm.runtime.files import replacing, write_json
from medddpm.runtime.processes import peak, pick_device, reset_peak, wait
from medddpm.training.config import FREE, TrainConfig
from medddpm.training.device_cache import DeviceCache
from medddpm.training.trainer import Trainer
from study.brains.arms import Sampling, Training
from study.brains.samples import write_samples
from study.brains.settings import computing, usual
from study.brains.subjects import HELD_OUT, TRAINED, HeadName

RESULT = "result.json"
WEIGHTS = "averaged.safetensors"
RATIOS = (0.05, 0.2, 0.5, 1.0, 2.0, 5.0, 20.0)
"""The noise-to-signal ratios σ/α at which x_0 is predicted: the same noise for every prediction and schedule."""

MARKS = (0.25, 0.5, 0.75)  # of the steps, at which the average is measured before the end
WINDOWS = 20  # of the loss
TIMED = 3.0  # seconds in which the duration of a step is measured
BATCH = 8  # volumes at once in what follows the training
LEVELS = 256  # of a sample's unit interval: finer than a head's noise, and an archive takes half the bytes of float16's
LONG = 2**31 - 1  # steps, in place of a length that is not known yet


def main(argv: Sequence[str] | None = None) -> int:
    """Carries out a training; returns the exit code. A failure is one line on stderr."""
    top = argparse.ArgumentParser(prog="python -m study.brains.trainer", description=__doc__)
    top.add_argument("folder", type=Path, help="gets the result")
    top.add_argument("--training", required=True, help="the fields of `study.brains.arms.Training`, as JSON")
    top.add_argument("--data", type=Path, required=True, help="folder of the heads")
    top.add_argument("--device", default="auto", help="auto, cuda, cpu")
    arguments = top.parse_args(argv)
    try:
        training = Training.of(json.loads(arguments.training))
        work(training, arguments.folder, arguments.data, pick_device(arguments.device))
        return 0
    except BadInput as error:
        print(error, file=sys.stderr)
    except torch.OutOfMemoryError:
        print("out of memory: use a smaller --size or --channels", file=sys.stderr)
    return 1


def work(training: Training, folder: Path, data: Path, device: torch.device) -> dict[str, Any]:
    """Trains, measures and draws; writes `RESULT` to a folder and returns its content."""
    trained_on, held_out = training.volumes(data)
    for volumes in (trained_on, held_out):
        volumes.prepare()
    heads = DeviceCache(trained_on, device)
    images, masks = (
        torch.stack(parts).to(device) for parts in zip(*(held_out[k] for k in range(len(held_out))), strict=True)
    )
    setting = training.setting or usual(device)
    steps = training.steps or steps_within(training.seconds, training.config(setting, LONG), heads, device, setting)
    trainer = Trainer(training.config(setting, steps), heads, device)
    with contextlib.closing(trainer), computing(setting, trainer.unet):
        print(f"training for {steps} steps", flush=True)
        seconds, errors = _trained(trainer, setting, steps, images, masks)
        for weights, model in (("averaged", trainer.averaged), ("raw", trainer.diffusion)):
            errors += _errors(model, setting, images, masks, weights, 1.0)
        result: dict[str, Any] = {
            "training": training.described(), "volumes": trainer.config.batch_size,
            "channels": trainer.config.model_channels, "setting": setting, "steps": steps,
            "seconds": round(seconds, 3), "losses": windows(trainer.losses), "errors": errors, "samples": [],
            "date": now(),
        }  # fmt: skip
        write_json(folder / RESULT, {**result, "partial": True})
        if training.keeps_weights:
            write_weights(trainer, training, folder / WEIGHTS)
        print("drawing samples", flush=True)
        names = [HeadName(HELD_OUT, index) for index in range(training.drawn)]
        for sampling in training.samplings:
            file = archive_of(training, sampling)
            samples, spent, peak_bytes = drawn(trainer.averaged, setting, masks[: len(names)], sampling)
            write_samples(folder / file, (samples * LEVELS).round() / LEVELS, names)
            row = {"sampler": sampling[0], "evaluations": sampling[1], "seconds": spent, "n": len(names)}
            result["samples"].append({**row, "peak_bytes": peak_bytes, "file": file})
    write_json(folder / RESULT, result)
    return result


def archive_of(training: Training, sampling: Sampling) -> str:
    """Returns the name of the file of samples, which is also their name as a set in `study judge`."""
    sampler, evaluations = sampling
    return f"{training.key}.{sampler.replace('+', 'p')}{evaluations}.npz"


def steps_within(seconds: float, config: TrainConfig, heads: Volumes, device: torch.device, setting: str) -> int:
    """Returns how many steps take so many seconds here, measured on the first steps of a training that is thrown away.

    The training that counts begins anew, so that it depends on the number of its steps alone.
    """
    trainer = Trainer(config, heads, device)
    with contextlib.closing(trainer), computing(setting, trainer.unet):
        trainer.train_step()  # captures the step
        wait(device)
        began, made = time.perf_counter(), 0
        while made == 0 or time.perf_counter() - began < min(TIMED, seconds):
            for _ in range(10 if device.type == "cuda" else 1):
                trainer.train_step()
                made += 1
            wait(device)
        rate = made / (time.perf_counter() - began)
    return max(1, round(seconds * rate))


def _trained(
    trainer: Trainer, setting: str, steps: int, images: Tensor, masks: Tensor
) -> tuple[float, list[dict[str, Any]]]:
    """Trains; returns the seconds of the steps after the first, and errors of the average at `MARKS`.

    Raises:
        BadInput: the loss is no longer a number.
    """
    marks = {max(1, round(share * steps)): share for share in MARKS}
    errors: list[dict[str, Any]] = []
    seconds, began = 0.0, time.perf_counter()
    while trainer.step < steps:
        trainer.train_step()
        step = trainer.step
        if step != 1 and step != steps and step not in marks:
            continue
        wait(trainer.device)
        if step > 1:
            seconds += time.perf_counter() - began
        if not np.isfinite(trainer.read_losses()).all():
            raise BadInput("loss", f"it is no longer a number at step {step}", "lower the learning rate")
        if step in marks and step < steps:
            errors += _errors(trainer.averaged, setting, images, masks, "averaged", marks[step])
            wait(trainer.device)
        began = time.perf_counter()
    return seconds, errors


def _errors(
    model: GaussianDiffusion, setting: str, images: Tensor, masks: Tensor, weights: str, share: float
) -> list[dict[str, Any]]:
    with computing(setting, model.denoise_fn):
        errors = clean_errors(model, images, masks)
    return [{"weights": weights, "share": share, "ratio": ratio, "value": errors[ratio]} for ratio in RATIOS]


@torch.no_grad()
def clean_errors(model: GaussianDiffusion, images: Tensor, masks: Tensor) -> dict[float, float]:
    """Returns the mean squared error of the network's x_0 at each of `RATIOS`, from noise that never changes.

    A loss depends on prediction, weighting and density; this error does not, so that all arms compare.

    Args:
        model: with a network on the images' device.
        images: (N, C, D, W, H) in [-1, 1].
        masks: (N, M, D, W, H).
    """
    noise = normal(images, [torch.Generator().manual_seed(k) for k in range(len(images))])
    errors = {}
    for ratio in RATIOS:
        total = torch.zeros((), dtype=torch.float64, device=images.device)
        for part in torch.arange(len(images), device=images.device).split(BATCH):
            t = torch.full((len(part),), model.timestep_at(ratio), device=images.device)
            x = model.add_noise(images[part], t, noise[part])
            error = (model.clean(x, masks[part], t) - images[part]).square()
            total += error.flatten(1).mean(1).double().sum()
        errors[ratio] = float(total) / len(images)
    return errors


def drawn(
    model: GaussianDiffusion, setting: str, masks: Tensor, sampling: Sampling
) -> tuple[Tensor, float, int | None]:
    """Draws a sample for each mask, with a noise of its own that is the same on every machine.

    Args:
        model: with a network on the masks' device.
        setting: that the network computes under.
        masks: (N, M, D, W, H).
        sampling: by which they are drawn.

    Returns:
        (N, C, D, W, H) on the CPU; the seconds that a volume takes; and the bytes of device memory that drawing `BATCH`
        volumes at once takes, weights and captured graph included, None on a CPU.
    """
    sampler, evaluations = sampling
    samples, device = [], masks.device
    weights = sum(tensor.nbytes for tensor in model.denoise_fn.state_dict().values())
    beside = torch.cuda.memory_allocated(device) - weights if device.type == "cuda" else 0  # the optimizer, the heads
    reset_peak(device)  # before the capture: a replay allocates nothing
    with computing(setting, model.denoise_fn):
        model.sample(masks[:BATCH], 2, "ddim")  # kernels are loaded and the graph is captured
        wait(device)
        began = time.perf_counter()
        for first in range(0, len(masks), BATCH):
            batch = masks[first : first + BATCH]
            noises = [torch.Generator().manual_seed(first + place) for place in range(len(batch))]
            samples.append(model.sample(batch, evaluations, sampler, generator=noises))
        wait(device)
        seconds = time.perf_counter() - began
        most = peak(device)
        cuda_graphs.forget(model.denoise_fn)
    return torch.cat(samples).cpu(), seconds / len(masks), None if most is None else most - beside


def windows(losses: Sequence[float]) -> list[dict[str, float]]:
    """Returns the mean losses of `WINDOWS` parts of a training: share of the steps at a part's end, value, n."""
    ends = np.linspace(0, len(losses), min(WINDOWS, len(losses)) + 1).round().astype(int)
    return [
        {"share": float(last / len(losses)), "value": float(np.mean(losses[first:last])), "n": int(last - first)}
        for first, last in itertools.pairwise(ends.tolist())
    ]


def write_weights(trainer: Trainer, training: Training, path: Path) -> None:
    """Writes the averaged weights as a released model, in BF16, with what it was trained on."""
    config = {name: value for name, value in asdict(trainer.config).items() if name not in FREE | {"image_size"}}
    origin = {"contrast": training.contrast, "seed": TRAINED, "count": training.heads}
    sampler, steps = training.samplings[0] if training.samplings else ("dpm++", 20)
    content = {
        **trainer.state(),
        "training": {**config, "volumes": training.heads, "heads": origin},
        "sampling": {"sampler": sampler, "steps": steps},
    }
    with replacing(path) as temporary:
        released.write(content, temporary, about=f"Arm {training.arm} of `study trainings`, trained on heads.")


if __name__ == "__main__":
    end(main())
