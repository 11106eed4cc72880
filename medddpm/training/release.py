"""From a training run's folder to a model that travels: the weights, the training record and the card."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
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
from medddpm.runtime.files import replacing
from medddpm.runtime.processes import pick_device
from medddpm.switches import BASE, Switches
from medddpm.training.config import FREE
from medddpm.training.run_folder import newest, read_run

SAMPLER, STEPS = "sde-dpm++", 20
"""What a released model recommends unless told otherwise."""

RECORDED = 1000
"""Rows of a training record at most: each is the mean over an equal number of steps."""

MEASURED = ("dice", "dice_reference", "lesion_contrast", "lesion_contrast_reference", "wasserstein", "diversity")
"""Of `quality.METRICS`, what the card tells."""

_PHANTOM = re.compile(r"phantom (\w+), seed (\d+), subject \d+")


def release_run(
    run: Path,
    out: Path,
    *,
    sampler: str = SAMPLER,
    steps: int = STEPS,
    held_out: int = 16,
    about: str = "",
    switches: Switches = BASE,
    device: str = "auto",
    progress: bool = False,
) -> list[Path]:
    """Writes a run's newest averaged weights as NAME.safetensors, with NAME.csv and NAME.md.

    Args:
        run: the folder of `medddpm train`.
        out: NAME.safetensors.
        sampler, steps: what its users draw with unless they choose otherwise.
        held_out: subjects never trained on that it is measured on, where it was trained on the phantom; 0 for none.
        about: a sentence for the card, on what and how long it was trained.
        switches, device: under which it draws the volumes that are measured.
        progress: shows a bar over these volumes.

    Returns:
        the three files.

    Raises:
        BadInput: where the folder is no run or has no checkpoint, or the files cannot be written.
    """
    if not (run / "run.json").is_file() or (found := newest(run)) is None:
        raise BadInput(run, "it is no run's folder with a checkpoint", "give the --out of `medddpm train`")
    content = {**found[1], "training": training_of(run), "sampling": {"sampler": sampler, "steps": steps}}
    released.release(content, out, about=about)
    if held_out and (phantom := content["training"].get("phantom")):
        subjects = Phantom(held_out, tuple(content["size"]), phantom["contrast"], seed=phantom["seed"] + 1)
        content["evaluation"] = evaluation(released.read_released(out), subjects, switches, device, progress)
        released.release(content, out, about=about)
    csv, card = out.with_suffix(".csv"), out.with_suffix(".md")
    table = training_record(content["losses"].numpy())
    with replacing(csv) as temporary:
        table.to_csv(temporary, index=False, float_format="%.5f")
    text = card_of(out)
    with replacing(card) as temporary:
        temporary.write_text(text)
    return [out, csv, card]


def card_of(path: Path) -> str:
    """The card of a released model, from its file and the training record beside it."""
    with safe_open(path, framework="pt") as file:
        dtype = file.get_slice("out.2.weight").get_dtype()
    record = pd.read_csv(path.with_suffix(".csv"))
    return model_card(path.stem, released.read_released(path), path.stat().st_size, dtype, record)


def training_of(run: Path) -> dict[str, Any]:
    """What run.json tells, its volumes counted, and where they are phantoms, which."""
    known = read_run(run)
    names = known["volumes"]
    kinds = {(match[1], int(match[2])) if (match := _PHANTOM.fullmatch(name)) else None for name in names}
    (kind,) = kinds if len(kinds) == 1 else (None,)
    told = {key: value for key, value in known.items() if key not in FREE | {"image_size", "size"}} | {
        "volumes": len(names)
    }
    return told | ({"phantom": {"contrast": kind[0], "seed": kind[1], "count": len(names)}} if kind else {})


def training_record(losses: np.ndarray) -> pd.DataFrame:
    """Columns step and loss: at most `RECORDED` rows, each the mean over the steps since the one before."""
    span = -(-len(losses) // RECORDED)
    ends = np.append(np.arange(span, len(losses), span), len(losses))
    return pd.DataFrame({"step": ends, "loss": [part.mean() for part in np.split(losses, ends[:-1])]})


def evaluation(
    content: Mapping[str, Any], subjects: Phantom, switches: Switches, device: str, progress: bool
) -> dict[str, Any]:
    """Draws a volume for each subject's mask as the model recommends, and compares them with the subjects' own."""
    where = pick_device(device)
    diffusion = diffusion_from(content, "the released model").to(where).eval()

    def drawn() -> Iterator[torch.Tensor]:
        for index in tqdm(range(len(subjects)), desc="measuring", unit="volume", disable=not progress):
            mask = subjects[index][1][None].to(where)
            generator = torch.Generator().manual_seed(index)
            yield diffusion.sample(mask, **content["sampling"], generator=generator)[0].cpu()

    with switches.on(diffusion.denoise_fn):
        samples = torch.stack(list(drawn()))
    reference = VolumeSet.of(subjects, range(len(subjects)))
    table = compare(VolumeSet(samples, reference.labels), reference, paired=True, metrics=MEASURED)
    columns = ["metric", "tissue", "value", "low", "high"]
    rows = table[columns].astype(object).where(table[columns].notna(), None).to_dict("records")
    return {"seed": subjects.seed, "count": len(subjects), "rows": rows}
