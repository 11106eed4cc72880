"""What samples are good for: segmenters trained on them alone, on heads alone, and on both, tested on held-out heads.

The argument of Med-DDPM's authors (Dorjsembe et al. 2024, IEEE J. Biomed. Health Inform. 28:4084), for tissues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor, nn

from medddpm.quality.measures import LESION
from medddpm.quality.tissues import BACKGROUND, TISSUES, TUMOUR, WIDTH, mean_dice, segment, train_segmenter

Labelled = tuple[Tensor, Tensor]
"""Images (N, C, D, W, H) in [-1, 1], and labels (N, D, W, H) of `TISSUES`."""


@torch.inference_mode()
def labelled_samples(images: Tensor, masks: Tensor, judge: nn.Module, batch: int = 8) -> Labelled:
    """Labels samples: tumour and background are their masks', the rest is the tissue that the judge finds likeliest.

    The mask does not say where a sample's gyri run, so their labels must come from the sample.

    Args:
        images: (N, C, D, W, H).
        masks: (N, D, W, H): 0 background, 1 brain, 2 lesion.
        judge: a segmenter.
        batch: volumes at once.
    """
    device = next(judge.parameters()).device
    seen = []
    for part in images.split(batch):
        scores = judge(part.to(device).float())
        scores[:, [BACKGROUND, TUMOUR]] = -torch.inf
        seen.append(scores.argmax(dim=1).cpu())
    masks = masks.cpu()
    labels = torch.where(masks == LESION, TUMOUR, torch.where(masks == 0, BACKGROUND, torch.cat(seen)))
    return images, labels.to(torch.uint8)


def use(
    samples: Labelled,
    heads: Labelled,
    test: Labelled,
    *,
    steps: int,
    seeds: Sequence[int] = (0,),
    width: int = WIDTH,
    batch: int = 4,
    device: torch.device | str = "cpu",
) -> pd.DataFrame:
    """Trains segmenters on samples, on heads and on both, with equal steps, and tests them on held-out heads.

    Args:
        samples: of `labelled_samples`, or any.
        heads: as many of the heads that the samples' model was trained on.
        test: heads of other seeds.
        steps: of each training.
        seeds: a training each.
        width: of the networks.
        batch: volumes a step.
        device: trains.

    Returns:
        Columns trained_on (samples, heads, both), seed, volumes (trained on), tissue, value (mean Dice), low and high
        (its interval over test heads), ratio (value over that of heads alone).
    """
    both = tuple(torch.cat(pair) for pair in zip(samples, heads, strict=True))
    sets: Mapping[str, Labelled] = {"heads": heads, "samples": samples, "both": (both[0], both[1])}
    rows = []
    for seed in seeds:
        usual: dict[str, float] = {}
        for name, (images, labels) in sets.items():
            network = train_segmenter(
                images.to(device), labels.to(device), steps=steps, width=width, batch=batch, seed=seed
            )  # fmt: skip
            for title, estimate in mean_dice(segment(network, test[0]).labels, test[1].cpu()).items():
                if title == TISSUES[BACKGROUND]:
                    continue
                usual.setdefault(title, estimate.value)
                ratio = estimate.value / usual[title] if usual[title] else None
                known = {"trained_on": name, "seed": seed, "volumes": len(images), "tissue": title}
                rows.append({**known, **vars(estimate), "ratio": ratio})
    return pd.DataFrame(rows)
