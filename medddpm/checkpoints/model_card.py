"""The card of a released model, under the headings of Hugging Face's template (Mitchell et al. 2019 gave the idea).

Every number on it is read from the model's file and its training record, so that the card says what they say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from torch import Tensor

TEMPLATE = """\
---
license: apache-2.0
library_name: medddpm
pipeline_tag: image-to-image
tags: [medical-imaging, mri, brain, 3d, diffusion, ddpm, synthetic-data]
---

# Model Card for {name}

A 3-D denoising diffusion model that draws a brain volume ({data_short}, {size}) for a mask of brain and lesion.

## Model Details

### Model Description

The 3-D U-Net of Med-DDPM, conditioned on the mask by concatenation, in a width that two CPU cores can sample from.
{about}

- **Developed by:** the authors of this repository
- **Model type:** denoising diffusion probabilistic model, {timesteps} timesteps, cosine schedule, predicts the noise
- **License:** Apache-2.0
- **Finetuned from model:** none; trained from random weights

### Model Sources

- **Repository:** this one, package `medddpm`
- **Paper:** the network: doi:10.1109/JBHI.2024.3385504; what this book reproduces: arXiv 2606.19365

## Uses

### Direct Use

To look at what the network does, to try masks, and to run the book without a GPU.

### Out-of-Scope Use

Nothing clinical: no diagnosis, no training data for a clinical model, no claim about real patients.

## Bias, Risks, and Limitations

{limits}

## How to Get Started with the Model

```
medddpm sample --checkpoint {name}.safetensors --mask mask.nii.gz --out volume.nii.gz
```

The mask labels brain 1 and lesion 2; it may have any size and orientation, and the volume comes back on its grid. The
file recommends {sampler} with {sampling_steps} steps, which is what is used where no `--sampler` is given. A seed gives
the same volume each time. The model that travels with the package is taken where no `--checkpoint` is given.

## Training Details

### Training Data

{data}

### Training Procedure

Mean absolute error of the predicted noise, Adam, the average of the weights is what is released.

#### Training Hyperparameters

| | |
|---|---|
| steps | {step} |
| learning rate | {learning_rate} |
| volumes a step | {volumes_a_step} |
| deviation of a volume's noise as a whole | {offset_noise} |
| largest norm of a gradient (0: any) | {clip_norm} |
| average of the weights | decay {ema_decay} every {ema_every} steps, from step {ema_start} on |
| setting | {switches} |
| seed | {seed} |

#### Speeds, Sizes, Times

{parameters} parameters, {bytes} bytes in {dtype}. The loss fell from {first_loss} (mean up to step {first_step}) to
{last_loss} (over the last tenth of the steps); `{name}.csv` has it all.

## Evaluation

{evaluation}

## Technical Specifications

### Model Architecture and Objective

| | |
|---|---|
| channels in, out | {in_channels}, {out_channels} |
| base width, each level's multiple of it | {model_channels}; {channel_mult} |
| residual blocks a level | {num_res_blocks} |
| groups of a norm | {norm_groups} |
| attention at the rates | {attention_rates}, and in the middle |

## Citation

Dorjsembe, Z., Pao, H.-K., Odonchimed, S., Xiao, F.: Conditional Diffusion Models for Semantic 3D Brain MRI Synthesis.
IEEE J. Biomed. Health Inform. 28(7), 2024.
"""

PHANTOM = """\
{count} synthetic subjects (`medddpm.data.phantom`, {contrast}, seed {seed}): the MNI152 anatomy (Fonov et al. 2011),
warped, with planted lesions, under the signal equations of MR. No patient's data, and nothing downloaded."""

PHANTOM_LIMITS = """\
Its subjects are one averaged anatomy, warped: it knows no skull, no atrophy, no age, no scanner but one, and lesions of
one kind. What it draws looks like its phantoms, not like a population, and says nothing about one."""

EVALUATION = """\
### Testing Data, Factors & Metrics

{count} subjects of another seed ({seed}), never trained on; a volume for the mask of each, drawn as recommended above.
Metrics are those of `medddpm.quality`, with 95% bootstrap intervals; what ends in `_reference` is the subjects' own
volumes under the same measure: what a perfect sample would reach.

### Results

| metric | tissue | value | 95% interval |
|---|---|---|---|
{rows}"""

DTYPES = {"BF16": "bfloat16", "F32": "float32", "F16": "float16"}


def model_card(name: str, content: Mapping[str, Any], bytes_: int, dtype: str, record: pd.DataFrame) -> str:
    """The card, Markdown.

    Args:
        name: of the model, without suffix.
        content: of `released.read_released`, for a file that `training.release.release_run` wrote.
        bytes_: of that file.
        dtype: of its weights, by safetensors' name: "BF16".
        record: the training record: step, loss.
    """
    config, training, state = content["config"], content["training"], content["ema"]
    phantom = training.get("phantom")
    plain = f"{training['volumes']} volumes of the trainer's own, laid out as {training['layout']}."
    return TEMPLATE.format_map(
        {"norm_groups": 32, "offset_noise": 0.0, "clip_norm": 0.0}  # before they could be chosen
        | config
        | training
        | losses(record)
        | {
            "name": name,
            "about": content["about"],
            "attention_rates": _listed(config["attention_rates"]),
            "bytes": bytes_,
            "channel_mult": _listed(config["channel_mult"]),
            "data": PHANTOM.format_map(phantom) if phantom else plain,
            "data_short": f"{phantom['contrast'].upper()} phantom" if phantom else training["layout"],
            "dtype": DTYPES.get(dtype, dtype),
            "evaluation": _evaluation(content.get("evaluation")),
            "limits": PHANTOM_LIMITS if phantom else "Those of the volumes it was trained on.",
            "parameters": parameters(state),
            "sampler": content["sampling"]["sampler"],
            "sampling_steps": content["sampling"]["steps"],
            "size": "×".join(map(str, content["size"])),
            "step": content["step"],
            "timesteps": content["timesteps"],
            "volumes_a_step": training["batch_size"] * training["accumulation"],
        }
    )


def parameters(state: Mapping[str, Tensor]) -> int:
    """Numbers in a network's weights, the schedule's buffers left out."""
    return sum(tensor.numel() for name, tensor in state.items() if name.startswith("denoise_fn."))


def losses(record: pd.DataFrame) -> dict[str, str | int]:
    """What the card says of the training record."""
    last = record[record["step"] > 0.9 * record["step"].max()]
    return {
        "first_step": int(record["step"].iloc[0]),
        "first_loss": f"{record['loss'].iloc[0]:.3f}",
        "last_loss": f"{last['loss'].mean():.4f}",
    }


def _evaluation(found: Mapping[str, Any] | None) -> str:
    if not found:
        return "None; `medddpm.quality` measures it."
    rows = [f"| {r['metric']} | {r['tissue']} | {_number(r['value'])} | {_interval(r)} |" for r in found["rows"]]
    return EVALUATION.format(count=found["count"], seed=found["seed"], rows="\n".join(rows))


def _interval(row: Mapping[str, Any]) -> str:
    known = row["low"] is not None and row["high"] is not None
    return f"{_number(row['low'])} to {_number(row['high'])}" if known else "–"


def _number(value: float) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.3f}"


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))
