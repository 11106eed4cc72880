"""Releases a training run as a model: the weights, the training record and the card."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors import safe_open
from tqdm import tqdm

from medddpm.checkpoints import released
from medddpm.checkpoints.fields import is_size
from medddpm.checkpoints.files import diffusion_from
from medddpm.checkpoints.model_card import MASK_LABELS, UNSAID, Terms, model_card
from medddpm.checkpoints.weights import are_losses
from medddpm.data.brain_masks import SYNTHETIC
from medddpm.data.synthetic import Synthetic, origin_of
from medddpm.errors import BadInput
from medddpm.fast.reports import bars, log
from medddpm.quality.metrics import VolumeSet, compare
from medddpm.runtime.files import check_output, opened, replacing_together
from medddpm.runtime.processes import pick_device
from medddpm.switches import BASE, Switches
from medddpm.training.config import FREE, TrainConfig
from medddpm.training.run_folder import read_run, readable

SAMPLER, STEPS = "sde-dpm++", 20
"""The sampler and the steps that a released model recommends by default."""

HELD_OUT = 16
"""The subjects that a model of synthetic subjects is measured on by default."""

RECORDED = 1000
"""The most rows in a training record; each is the mean over an equal number of steps."""

MEASURED = ("dice", "dice_reference", "lesion_contrast", "lesion_contrast_reference", "wasserstein", "diversity")
"""The metrics on the card, of `quality.metrics.METRICS`."""

STATE = {"config", "ema", "layout", "losses", "size", "step"}
"""The entries of a checkpoint that a release needs."""


def release_run(
    run: Path,
    out: Path,
    *,
    sampler: str = SAMPLER,
    steps: int | None = None,
    held_out: int | None = None,
    about: str = "",
    terms: Terms = UNSAID,
    setting: Switches = BASE,
    device: str = "auto",
    progress: bool = False,
    force: bool = False,
) -> list[Path]:
    """Writes a run's newest averaged weights as NAME.safetensors, with NAME.csv and NAME.md.

    A model of synthetic subjects is measured on subjects of the next seed that the run did not use: 1, or after a run
    with held-out volumes, which have seed 1, 2. Those did not steer the training, but whoever chooses a run or its
    length by their loss would be measured on what was chosen by.

    Args:
        run: the folder of `medddpm train`.
        out: NAME.safetensors.
        sampler, steps: the recommended ones; by default `STEPS` steps, and with "ddpm" all timesteps.
        held_out: the number of new subjects to measure a model of synthetic ones on; by default `HELD_OUT`, 0 for none.
        about: a sentence for the card: the training data, and the length of the training.
        terms: for the card: licence and author.
        setting, device: compute the volumes that are measured.
        progress: shows a bar over these volumes.
        force: replaces files of an earlier release.

    Returns:
        the three files.

    Raises:
        BadInput: the folder is not a run or has no checkpoint, the model cannot be sampled with that sampler in so many
            steps, or the files cannot be written. Then none of the three is written, and an earlier release stays.
    """
    if out.suffix != released.SUFFIX:
        raise BadInput(out, f"a released model's name ends in {released.SUFFIX}", "give --out such a name")
    released.check_utf8(about, "--about")
    released.check_utf8(os.path.realpath(out), out)
    files = [out.with_suffix(suffix) for suffix in (released.SUFFIX, ".csv", ".md")]
    for file in files:
        check_output(file, ours=_is_released, force=force)
    content = _released_content(run, sampler, steps)
    synthetic = next((key for key in SYNTHETIC if key in content["training"]), None)
    if held_out and not synthetic:
        problem = "the run was not trained on the phantom or on heads, and of its data no other subjects are known"
        raise BadInput("--held-out", problem, "leave it out")
    if synthetic and (count := HELD_OUT if held_out is None else held_out):
        origin = content["training"][synthetic]
        subjects = SYNTHETIC[synthetic](count, tuple(content["size"]), origin["contrast"], seed=_new_seed(run))
        content["evaluation"] = evaluation(content, subjects, setting, device, progress)
    _write(content, files, about, terms)
    return files


def _released_content(run: Path, sampler: str, steps: int | None) -> dict[str, Any]:
    """Returns a run's newest checkpoint with the averaged weights rounded as in the release, and the release's entries.

    Raises:
        BadInput: as `release_run`.
    """
    if not (run / "run.json").is_file() or (newest := readable(run)) is None:
        raise BadInput(run, "it is no run's folder with a checkpoint", "give the --out of `medddpm train`")
    path, content, problems = newest
    training = training_of(run)
    if not content.keys() >= STATE or not _is_whole(content):
        raise BadInput(path, "it holds no state of a training run", "release a run of `medddpm train`")
    diffusion = diffusion_from(content, path)
    for problem in problems.values():
        log.warning(f"{problem}; {path.name} is released")
    if steps is None and sampler != "ddpm":
        steps = STEPS
    return {
        **content,
        "ema": released.from_released(released.to_released(content["ema"]), diffusion.timesteps, diffusion.prediction),
        "training": training,
        "sampling": {"sampler": sampler, "steps": diffusion.checked_steps(steps, sampler)},
    }


def _is_whole(content: Mapping[str, Any]) -> bool:
    """Returns whether there is a loss for each step, and a size and a layout for the card."""
    described = is_size(content["size"]) and content["layout"] in list(MASK_LABELS)
    return described and are_losses(content["losses"], content["step"])


def _write(content: Mapping[str, Any], files: Sequence[Path], about: str, terms: Terms) -> None:
    """Writes weights, record and card, which appear together: a card is never beside another release's weights."""
    weights, record, card = files
    with replacing_together([record, card, weights]) as (new_record, new_card, new_weights):
        training_record(content["losses"].numpy()).to_csv(new_record, index=False, float_format="%.5f")
        released.write(content, new_weights, about=about)
        # A text in run.json may hold half of a character, which JSON can write and UTF-8 cannot.
        text = card_of(weights.stem, new_weights, new_record, terms)
        new_card.write_text(text, "utf-8", errors="backslashreplace")


def _is_released(path: Path) -> bool:
    """Returns whether `release_run` wrote the file at `path`."""
    if path.suffix == released.SUFFIX:
        try:
            return bool(released.read_released(path))
        except BadInput:
            return False
    with opened(path) as stream:
        start = stream.read(200).decode(errors="replace")
    return start.startswith("step,loss\n") if path.suffix == ".csv" else "library_name: medddpm" in start


def card_of(name: str, weights: Path, record: Path, terms: Terms = UNSAID) -> str:
    """Writes the card of a released model of that name from its file, its training record and its trainer's terms."""
    with safe_open(weights, framework="pt") as file:
        dtype = file.get_slice("out.2.weight").get_dtype()
    content = released.read_released(weights)
    content["training"] = asdict(TrainConfig()) | content["training"]  # an earlier version's lacks newer fields
    return model_card(name, content, weights.stat().st_size, dtype, pd.read_csv(record), terms)


def training_of(run: Path) -> dict[str, Any]:
    """Returns the contents of run.json, with the number of its volumes and, of synthetic ones, contrast and seed."""
    known = read_run(run)
    names = known["volumes"]
    origin = origin_of(names)
    training = {key: value for key, value in known.items() if key not in FREE | {"image_size", "size", "held_out"}}
    training["volumes"] = len(names)
    if origin:
        training[origin.key] = {"contrast": origin.contrast, "seed": origin.seed, "count": len(names)}
    return training


def _new_seed(run: Path) -> int:
    """Returns the seed after those of the synthetic subjects that a run trained on or held out."""
    known = read_run(run)
    origins = (origin_of(known["volumes"]), origin_of(known.get("held_out", [])))
    return 1 + max(origin.seed for origin in origins if origin)


def training_record(losses: np.ndarray) -> pd.DataFrame:
    """Returns columns step and loss: at most `RECORDED` rows, each the mean over the steps since the previous row."""
    span = -(-len(losses) // RECORDED)
    ends = np.append(np.arange(span, len(losses), span), len(losses))
    return pd.DataFrame({"step": ends, "loss": [part.mean() for part in np.split(losses, ends[:-1])]})


def evaluation(
    content: Mapping[str, Any], subjects: Synthetic, setting: Switches, device: str, progress: bool
) -> dict[str, Any]:
    """Samples a volume for each subject's mask as the model recommends, and compares it with the subject's."""
    where = pick_device(device)
    diffusion = diffusion_from(content, "the released model").to(where).eval()

    def sampled_volumes() -> Iterator[torch.Tensor]:
        for index in tqdm(range(len(subjects)), desc="measuring", unit="volume", disable=not progress, **bars()):
            mask = subjects[index][1][None].to(where)
            generator = torch.Generator().manual_seed(index)
            yield diffusion.sample(mask, **content["sampling"], generator=generator)[0].cpu()

    with setting.on(diffusion.denoise_fn):
        samples = torch.stack(list(sampled_volumes()))
    reference = VolumeSet.of(subjects, range(len(subjects)))
    channels = subjects.contrasts
    sampled = VolumeSet(samples, reference.labels)
    table = compare(sampled, reference, paired=True, metrics=MEASURED, channels=channels)
    columns = ["metric", *(["channel"] if len(channels) > 1 else []), "tissue", "value", "low", "high"]
    rows = table[columns].astype(object).where(table[columns].notna(), None).to_dict("records")
    return {"seed": subjects.seed, "count": len(subjects), "rows": rows}
