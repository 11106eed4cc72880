"""Evaluates a parity run's model: its samples for held-out masks as rows of quality, and a few of their slices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from medddpm.data.volumes import Volumes
from medddpm.diffusion import GaussianDiffusion
from medddpm.quality import metrics
from medddpm.quality.intervals import bootstrap, mean_of
from medddpm.switches import SETTINGS
from study.parity.plans import BRATS, SamplerSteps, TrainingRun
from study.parity.slices import three_slices, where_most
from study.parity.subjects import channels_of, tissues_of
from study.parity.training import QUICK, Slices, draw, held_out_losses

PLANES = ("axial", "coronal", "sagittal")
SHIFT = 0.1  # of a volume's brightness, in the image's range of 2
Row = dict[str, Any]


def evaluate_run(
    run: TrainingRun, diffusion: GaussianDiffusion, held_out: Volumes, resamples: int = 1000
) -> tuple[list[Row], Slices]:
    """Compares the samples of each of a run's samplers with the subjects whose masks they are drawn for.

    Args:
        run: with its samplers.
        diffusion: the trained model, on its device.
        held_out: subjects never trained on; for BraTS, the case itself.
        resamples: bootstrap draws of each interval.

    Returns:
        rows of sampler, sampler_steps, metric, channel, tissue, value, low, high, n; and slices by their names.
    """
    losses = held_out_losses(run, diffusion, held_out).numpy()
    loss = vars(bootstrap(mean_of(losses), (len(losses),), resamples=resamples))
    where = {"sampler": None, "sampler_steps": None, "metric": "held_out_loss", "channel": "all", "tissue": "all"}
    brightness = {"metric": "brightness_kept", "value": brightness_kept(run, diffusion, held_out), "n": 1}
    rows: list[Row] = [{**where, **loss, "n": len(losses)}, {**where, **brightness}]
    slices: Slices = {}
    device = diffusion.betas.device
    truth, masks = _references(run, held_out, run.held_out)
    truth = metrics.VolumeSet(truth.images.to(device), truth.labels, name="held-out subjects")
    samples = [draw(run, diffusion, masks, by) for by in run.samplers]  # timed, so first: the rest runs on the CPU
    print("drawn", flush=True)
    for by, (images, spent) in zip(run.samplers, samples, strict=True):
        known = {"sampler": by.sampler, "sampler_steps": by.steps}
        measured = [_seconds(run, spent, len(images)), *_compared(run, images, truth, held_out, resamples)]
        rows += [{**known, **row} for row in measured]
        slices |= _slices(run, images, truth, by, held_out)
        if run.contrast == BRATS:
            assert truth.labels is not None
            turned = metrics.VolumeSet(truth.images.flip(-1), truth.labels.flip(-1))
            images, _ = draw(run, diffusion, masks.flip(-1), by)
            rows += [{**known, **row} for row in _mirrored(run, images, turned, held_out, resamples)]
            mirrored = _slices(run, images, turned, by, held_out)
            slices |= {f"mirrored-{name}": plane for name, plane in mirrored.items()}
    return rows, slices


@torch.no_grad()
def brightness_kept(run: TrainingRun, diffusion: GaussianDiffusion, held_out: Volumes) -> float:
    """Measures the share of a shift of a noised volume's brightness that the network takes for the image's.

    At 1 it believes any brightness that it is shown, and a sample keeps the brightness of its first steps; at 0 it
    knows the brightness from the mask. Measured at t = 0.8 T on the first held-out subject.

    Args:
        run: gives the setting.
        diffusion: the model, on its device.
        held_out: the subjects.
    """
    device = diffusion.betas.device
    image, mask = (tensor.to(device)[None] for tensor in held_out[0])
    t = torch.tensor([int(0.8 * diffusion.timesteps)], device=device)
    noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(0)).to(device)
    share, spread = diffusion.sqrt_alphas_cumprod[t], diffusion.sqrt_one_minus_alphas_cumprod[t]
    noised = diffusion.add_noise(image, t, noise)
    means = []
    with SETTINGS[run.setting].on(diffusion.denoise_fn):
        for shown in (noised, noised + share * SHIFT):
            predicted = diffusion.denoise_fn(torch.cat([shown, mask], dim=1), t)
            means.append(((shown.double() - spread * predicted.double()) / share).mean())
    return float((means[1] - means[0]) / SHIFT)


def snapshot(run: TrainingRun, diffusion: GaussianDiffusion, held_out: Volumes, step: int) -> Slices:
    """Draws a sample along the way, of the first held-out subject: slices named "watch/…"."""
    truth, masks = _references(run, held_out, 1)
    images, _ = draw(run, diffusion, masks, QUICK)
    at = lesion_at(run, truth, 0)
    names = channels_of(run, held_out)
    planes = _planes(run, images[0, 0], at, f"watch/{run.key}/{step}/{names[0]}/0")
    return {name: plane for name, plane in planes.items() if not name.endswith(PLANES[2])}


def _references(run: TrainingRun, held_out: Volumes, count: int) -> tuple[metrics.VolumeSet, Tensor]:
    """Returns the volumes that samples are compared with, and their masks; a single case's mask `count` times."""
    if run.contrast == BRATS:
        case = metrics.VolumeSet.of(held_out, [0])
        masks = held_out[0][1][None].expand(count, -1, -1, -1, -1)
        return case, masks
    chosen = range(count)
    return metrics.VolumeSet.of(held_out, chosen), torch.stack([held_out[index][1] for index in chosen])


def _compared(
    run: TrainingRun, images: Tensor, truth: metrics.VolumeSet, held_out: Volumes, resamples: int
) -> list[Row]:
    known: Mapping[str, Any] = {
        "channels": channels_of(run, held_out), "tissues": tissues_of(run), "resamples": resamples,
    }  # fmt: skip
    images = images.to(truth.images.device)
    if run.contrast != BRATS:
        samples = metrics.VolumeSet(images, truth.labels, name=run.key)
        return _rows(metrics.compare(samples, truth, paired=True, **known))
    # One case is every sample's truth, and has no diversity to compare with.
    count = len(images)
    assert truth.labels is not None
    alike = metrics.VolumeSet(truth.images.expand(count, -1, -1, -1, -1), truth.labels.expand(count, -1, -1, -1))
    samples = metrics.VolumeSet(images, alike.labels, name=run.key)
    to_truth = metrics.compare(samples, alike, paired=True, metrics=("psnr", "ssim", "ms_ssim"), **known)
    unpaired = ("wasserstein", "dice", "dice_reference", "lesion_contrast", "lesion_contrast_reference")
    return _rows(pd.concat([to_truth, metrics.compare(samples, truth, metrics=unpaired, **known)]))


def _mirrored(
    run: TrainingRun, images: Tensor, turned: metrics.VolumeSet, held_out: Volumes, resamples: int
) -> list[Row]:
    """Evaluates samples for the mask mirrored left to right, which a model that only remembers does not follow."""
    rows = _compared(run, images, turned, held_out, resamples)
    mirrored = ("dice", "lesion_contrast")
    return [{**row, "metric": f"{row['metric']}_mirrored"} for row in rows if row["metric"] in mirrored]


def _rows(table: pd.DataFrame) -> list[Row]:
    numbers = table.astype(object).where(table.notna(), None)
    return [{str(name): value for name, value in row.items()} for row in numbers.to_dict("records")]


def _seconds(run: TrainingRun, spent: list[float], count: int) -> Row:
    """Returns the seconds a volume: median, tenth and ninetieth percentile; over full batches only, if any."""
    full = spent[: count // run.batch] or spent
    size = run.batch if count >= run.batch else count
    low, value, high = (float(np.percentile(full, p)) / size for p in (10, 50, 90))
    where = {"metric": "seconds_a_volume", "channel": "all", "tissue": "all"}
    return {**where, "value": value, "low": low, "high": high, "n": len(full)}


# Slices, by names KIND/OF/WHAT/CHANNEL/SUBJECT/PLANE. Of a sample, OF is its run's key and WHAT its SAMPLER-STEPS; of
# a watch the run's key and the step; of a truth or a mask `subjects_name` and a dash.


def subjects_name(run: TrainingRun) -> str:
    """Names the held-out subjects of a run, as the names of slices do."""
    return f"{run.contrast}-{'x'.join(map(str, run.size))}"


def lesion_at(run: TrainingRun, truth: metrics.VolumeSet, subject: int) -> list[int]:
    """Returns the voxel (H, W, D) whose planes show most of a subject's lesion, or of its brain if it has none."""
    assert truth.labels is not None
    labels = _upright(run, truth.labels[subject]).cpu().numpy()
    lesion = np.isin(labels, tissues_of(run).lesions)
    return where_most(lesion if lesion.any() else labels > 0)


def _slices(run: TrainingRun, images: Tensor, truth: metrics.VolumeSet, by: SamplerSteps, held_out: Volumes) -> Slices:
    names, subjects = channels_of(run, held_out), subjects_name(run)
    planes: Slices = {}
    assert truth.labels is not None
    most = run.shown if math.prod(run.size) <= 64**3 else 1  # the record grows too large
    for subject in range(min(most, len(images))):
        place = min(subject, len(truth) - 1)
        at = lesion_at(run, truth, place)
        for channel, name in enumerate(names):
            sample = f"{run.key}/{by.sampler}-{by.steps}"
            planes |= _planes(run, images[subject, channel], at, f"sample/{sample}/{name}/{subject}")
            if subject == place:
                planes |= _planes(run, truth.images[place, channel], at, f"truth/{subjects}/-/{name}/{subject}")
        if subject == place:
            labels = truth.labels[place].float() / 127.5 - 1  # as grey levels they are the labels' numbers
            planes |= _planes(run, labels, at, f"mask/{subjects}/-/labels/{subject}")
    return planes


def _upright(run: TrainingRun, volume: Tensor) -> Tensor:
    """Turns (D, W, H) into (H, W, D) of axes RAS, as `three_slices` takes it."""
    turned = volume.permute(2, 1, 0)
    return turned.flip(0, 1) if run.contrast == BRATS else turned  # from LPS


def _planes(run: TrainingRun, volume: Tensor, at: list[int], name: str) -> Slices:
    """Cuts the three planes of (D, W, H) in [-1, 1], as grey levels."""
    grey = _upright(run, ((volume.float().cpu().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)).numpy()
    planes = zip(PLANES, three_slices(grey, at), strict=True)
    return {f"{name}/{plane}": np.ascontiguousarray(cut) for plane, cut in planes}
