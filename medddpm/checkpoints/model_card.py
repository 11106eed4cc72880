"""The model card (Mitchell et al. 2019) of a released model, under the headings of Hugging Face's template.

Its text is in ``card/*.md``; every number comes from the model's file and its training record.
"""

from __future__ import annotations

import importlib.resources
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from torch import Tensor

MASK_LABELS = {
    "whole head": "brain 1 and lesion 2",
    "three-contrast head": "brain 1 and lesion 2",
    "BraTS": "the parts of the tumour 1 to 3 and brain 4",
}
PROCESSES = {
    "noise": "cosine schedule, predicts the noise",
    "velocity": "cosine schedule with zero terminal SNR, predicts the velocity",
    "flow": "rectified flow, predicts noise minus image",
}
NOT_SAID = "not said"
DTYPES = {"BF16": "bfloat16", "F32": "float32", "F16": "float16"}


@dataclass(frozen=True)
class Terms:
    """The entries of a card that only the trainer of a model knows; empty if they are not given.

    Args:
        license: under which the weights may be used, as Hugging Face names it: "apache-2.0", "cc-by-4.0", "other".
        author: who trained it.
    """

    license: str = ""
    author: str = ""


UNSAID = Terms()


def model_card(
    name: str, content: Mapping[str, Any], bytes_: int, dtype: str, record: pd.DataFrame, terms: Terms
) -> str:
    """Writes the card as Markdown.

    Args:
        name: the model's, without suffix.
        content: from `released.read_released`, of a file that `training.release.release_run` wrote; `training` has all
            fields of a `TrainConfig` that the card names.
        bytes_: the file's size.
        dtype: its weights', as safetensors names it: "BF16".
        record: the training record: step, loss.
        terms: the trainer's.
    """
    config, training, state = content["config"], content["training"], content["ema"]
    synthetic = next((key for key in ("phantom", "heads") if key in training), None)
    plain = f"{training['volumes']} volumes of the trainer's own, laid out as {training['layout']}."
    field = f"license: {terms.license}\n" if terms.license else ""  # Hugging Face lets it be absent
    card = _text("template").format_map(
        config
        | training
        | losses(record)
        | {
            "name": name,
            "about": content["about"],
            "license": terms.license or NOT_SAID,
            "license_field": field,
            "author": terms.author or NOT_SAID,
            "attention_rates": _listed(config["attention_rates"]),
            "bytes": bytes_,
            "channel_mult": _listed(config["channel_mult"]),
            "data": _of_subjects(synthetic, training[synthetic]) if synthetic else plain,
            "data_short": _short(training, synthetic),
            "dtype": DTYPES.get(dtype, dtype),
            "evaluation": _evaluation(content.get("evaluation")),
            "limits": _text(f"{synthetic}_limits") if synthetic else "Those of the volumes it was trained on.",
            "parameters": parameters(state),
            **_objective(content.get("prediction", "noise"), training),
            "sampler": content["sampling"]["sampler"],
            "sampling_steps": content["sampling"]["steps"],
            "size": "×".join(map(str, content["size"])),
            "step": content["step"],
            "started_from": training["init"] or "none; trained from random weights",
            "timesteps": content["timesteps"],
            "volumes_a_step": training["batch_size"] * training["accumulation"] * training.get("processes", 1),
            "mask_labels": MASK_LABELS[content["layout"]] + (", or is one of BraTS" if synthetic else ""),
            "files": ",\na file for each contrast, `volume_t1.nii.gz` and so on" if config["out_channels"] > 1 else "",
        }
    )
    return card + "\n"


def _short(training: Mapping[str, Any], synthetic: str | None) -> str:
    if not synthetic:
        return str(training["layout"])
    contrast = training[synthetic]["contrast"]
    return f"{'T1, T2 and FLAIR' if contrast == 'all' else contrast.upper()} {synthetic}"


def _of_subjects(synthetic: str, origin: Mapping[str, Any]) -> str:
    contrast = "t1, t2 and flair" if origin["contrast"] == "all" else origin["contrast"]
    return _text(synthetic).format_map({**origin, "contrast": contrast})


def _objective(prediction: str, training: Mapping[str, Any]) -> dict[str, str]:
    """Returns the card's words on what is predicted and minimized, the learning rate, the average and the flips."""
    error = {"l1": "absolute", "l2": "squared"}[training["loss"]]
    weighted = ", weighted by min-SNR" if training["weighting"] == "min-snr" else ""
    if training["density"] != "uniform":
        weighted += f", at timesteps of {training['density']} density"
    rate = f"{training['learning_rate']}"
    if training["warm_up"]:
        rate += f", reached after {training['warm_up']} steps"
    if training["decay"] == "cosine":
        rate += f", then along a cosine to 0 at step {training['length']}"
    average = f"decay {training['ema_decay']} every {training['ema_every']} steps, from step {training['ema_start']} on"
    if training["ema_share"]:
        average = f"a power function of width {training['ema_share']} of the steps, every {training['ema_every']} steps"
    return {
        "process": PROCESSES[prediction],
        "objective": f"Mean {error} error of the predicted {prediction}{weighted}",
        "rate": rate,
        "average": average,
        "changes": _changes(training),
    }


def _changes(training: Mapping[str, Any]) -> str:
    """Returns the card's rows on how volumes were changed before they were shown; none if they were not."""
    flips = "\n| flips | left and right, at random |" if training["flips"] else ""
    bent = f"\n| deformations | {training['deform']} of a side, standard deviation |" if training["deform"] else ""
    return flips + bent


def _text(name: str) -> str:
    return importlib.resources.files(__package__).joinpath("card", f"{name}.md").read_text("utf-8").rstrip()


def parameters(state: Mapping[str, Tensor]) -> int:
    """Returns the number of parameters of the network, without the schedule's buffers."""
    return sum(tensor.numel() for name, tensor in state.items() if name.startswith("denoise_fn."))


def losses(record: pd.DataFrame) -> dict[str, str | int]:
    """Returns the card's figures from the training record."""
    last = record[record["step"] > 0.9 * record["step"].max()]
    first, at_the_end = record["loss"].iloc[0], last["loss"].mean()
    return {
        "went": "fell" if at_the_end < first else "rose",
        "first_step": int(record["step"].iloc[0]),
        "first_loss": f"{first:.3f}",
        "last_loss": f"{at_the_end:.4f}",
    }


def _evaluation(evaluation: Mapping[str, Any] | None) -> str:
    if not evaluation:
        return "None; `medddpm.quality` measures it."
    rows = [f"| {r['metric']} | {_part(r)} | {_number(r['value'])} | {_interval(r)} |" for r in evaluation["rows"]]
    return _text("evaluation").format(count=evaluation["count"], seed=evaluation["seed"], rows="\n".join(rows))


def _part(row: Mapping[str, Any]) -> str:
    """Returns the tissue of a row, and of a model of several channels the channel."""
    channel = row.get("channel", "all")
    return str(row["tissue"]) if channel == "all" else f"{row['tissue']} in {channel}"


def _interval(row: Mapping[str, Any]) -> str:
    known = row["low"] is not None and row["high"] is not None
    return f"{_number(row['low'])} to {_number(row['high'])}" if known else "–"


def _number(value: float) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.3f}"


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))
