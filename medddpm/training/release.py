"""Releases a training run as a model: the weights, the training record and the card."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors import safe_open
from tqdm import tqdm

from medddpm.checkpoints import released
from medddpm.checkpoints.files import diffusion_from
from medddpm.checkpoints.model_card import model_card
from medddpm.data.phantom import Phantom
from medddpm.errors import BadInput
from medddpm.quality.metrics import VolumeSet, compare
from medddpm.runtime.files import check_output, replacing
from medddpm.runtime.processes import pick_device
from medddpm.switches import BASE, Switches
from medddpm.training.config import FREE, TrainConfig
from medddpm.training.run_folder import newest, read_run

SAMPLER, STEPS = "sde-dpm++", 20
"""What a released model recommends by default."""

RECORDED = 1000
"""The most rows in a training record; each is the mean over an equal number of steps."""

MEASURED = ("dice", "dice_reference", "lesion_contrast", "lesion_contrast_reference", "wasserstein", "diversity")
"""The metrics on the card, of `quality.metrics.METRICS`."""

_PHANTOM = re.compile(r"phantom (t1|t2|flair), seed (\d{1,18}), subject \d+")


def release_run(
    run: Path,
    out: Path,
    *,
    sampler: str = SAMPLER,
    steps: int = STEPS,
    held_out: int = 16,
    about: str = "",
    setting: Switches = BASE,
    device: str = "auto",
    progress: bool = False,
    force: bool = False,
) -> list[Path]:
    """Writes a run's newest averaged weights as NAME.safetensors, with NAME.csv and NAME.md.

    Args:
        run: the folder of `medddpm train`.
        out: NAME.safetensors.
        sampler, steps: what its users draw with unless they choose otherwise.
        held_out: the number of new subjects to measure it on, if it was trained on the phantom; 0 for none.
        about: a sentence for the card: what it was trained on, and for how long.
        setting, device: compute the volumes that are measured.
        progress: shows a bar over these volumes.
        force: replaces files of an earlier release.

    Returns:
        the three files.

    Raises:
        BadInput: the folder is not a run or has no checkpoint, or the files cannot be written.
    """
    if out.suffix != released.SUFFIX:
        raise BadInput(out, f"a released model's name ends in {released.SUFFIX}", "give --out such a name")
    files = [out.with_suffix(suffix) for suffix in (released.SUFFIX, ".csv", ".md")]
    for file in files:
        check_output(file, ours=_is_released, force=force)
    if not (run / "run.json").is_file() or (found := newest(run)) is None:
        raise BadInput(run, "it is no run's folder with a checkpoint", "give the --out of `medddpm train`")
    content = {**found[1], "training": training_of(run), "sampling": {"sampler": sampler, "steps": steps}}
    released.release(content, out, about=about)
    if held_out and (phantom := content["training"].get("phantom")):
        subjects = Phantom(held_out, tuple(content["size"]), phantom["contrast"], seed=phantom["seed"] + 1)
        content["evaluation"] = evaluation(released.read_released(out), subjects, setting, device, progress)
        released.release(content, out, about=about)
    _, csv, card = files
    table = training_record(content["losses"].numpy())
    with replacing(csv) as temporary:
        table.to_csv(temporary, index=False, float_format="%.5f")
    text = card_of(out)
    with replacing(card) as temporary:
        temporary.write_text(text)
    return files


def _is_released(path: Path) -> bool:
    """Whether `release_run` wrote the file at `path`."""
    if path.suffix == released.SUFFIX:
        try:
            return bool(released.read_released(path))
        except BadInput:
            return False
    start = path.read_bytes()[:200].decode(errors="replace")
    return start.startswith("step,loss\n") if path.suffix == ".csv" else "library_name: medddpm" in start


def card_of(path: Path) -> str:
    """Writes the card of a released model from its file and the training record beside it."""
    with safe_open(path, framework="pt") as file:
        dtype = file.get_slice("out.2.weight").get_dtype()
    record = pd.read_csv(path.with_suffix(".csv"))
    content = released.read_released(path)
    content["training"] = asdict(TrainConfig()) | content["training"]  # an earlier version's lacks newer fields
    return model_card(path.stem, content, path.stat().st_size, dtype, record)


def training_of(run: Path) -> dict[str, Any]:
    """The contents of run.json, with the number of its volumes and, for phantoms, their contrast and seed."""
    known = read_run(run)
    names = known["volumes"]
    kinds = {(match[1], int(match[2])) if (match := _PHANTOM.fullmatch(name)) else None for name in names}
    (kind,) = kinds if len(kinds) == 1 else (None,)
    training = {key: value for key, value in known.items() if key not in FREE | {"image_size", "size"}}
    training["volumes"] = len(names)
    return training | ({"phantom": {"contrast": kind[0], "seed": kind[1], "count": len(names)}} if kind else {})


def training_record(losses: np.ndarray) -> pd.DataFrame:
    """Columns step and loss: at most `RECORDED` rows, each the mean over the steps since the previous row."""
    span = -(-len(losses) // RECORDED)
    ends = np.append(np.arange(span, len(losses), span), len(losses))
    return pd.DataFrame({"step": ends, "loss": [part.mean() for part in np.split(losses, ends[:-1])]})


def evaluation(
    content: Mapping[str, Any], subjects: Phantom, setting: Switches, device: str, progress: bool
) -> dict[str, Any]:
    """Draws a volume for each subject's mask as the model recommends, and compares it with the subject's own."""
    where = pick_device(device)
    diffusion = diffusion_from(content, "the released model").to(where).eval()

    def drawn() -> Iterator[torch.Tensor]:
        for index in tqdm(range(len(subjects)), desc="measuring", unit="volume", disable=not progress):
            mask = subjects[index][1][None].to(where)
            generator = torch.Generator().manual_seed(index)
            yield diffusion.sample(mask, **content["sampling"], generator=generator)[0].cpu()

    with setting.on(diffusion.denoise_fn):
        samples = torch.stack(list(drawn()))
    reference = VolumeSet.of(subjects, range(len(subjects)))
    table = compare(VolumeSet(samples, reference.labels), reference, paired=True, metrics=MEASURED)
    columns = ["metric", "tissue", "value", "low", "high"]
    rows = table[columns].astype(object).where(table[columns].notna(), None).to_dict("records")
    return {"seed": subjects.seed, "count": len(subjects), "rows": rows}
