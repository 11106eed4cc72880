"""The segmenter of tissues, on volumes whose tissues are cubes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from medddpm.errors import BadInput
from medddpm.quality.tissues import (
    BACKGROUND,
    GREY,
    TISSUES,
    WHITE,
    features,
    network_for,
    segment,
    tissue_dice,
    train_segmenter,
)


def cubes(count: int, channels: int = 1) -> tuple[Tensor, Tensor]:
    """Volumes of 16³ with a dark cube about a bright one, each somewhere else."""
    generator = torch.Generator().manual_seed(count)
    labels = torch.zeros(count, 16, 16, 16, dtype=torch.uint8)
    for volume in labels:
        x, y, z = torch.randint(1, 6, (3,), generator=generator).tolist()
        volume[x : x + 9, y : y + 9, z : z + 9] = GREY
        volume[x + 2 : x + 7, y + 2 : y + 7, z + 2 : z + 7] = WHITE
    levels = torch.full((len(TISSUES),), -1.0)
    levels[GREY], levels[WHITE] = 0.0, 0.8
    noise = 0.05 * torch.randn(count, channels, 16, 16, 16, generator=generator)
    return levels[labels.long()][:, None] + noise, labels


@pytest.fixture(scope="module")
def trained() -> torch.nn.Module:
    return train_segmenter(*cubes(8), steps=40, batch=4, width=8)


def test_training_learns_tissues_of_volumes_not_seen(trained: torch.nn.Module) -> None:
    images, labels = cubes(5)
    seen = segment(trained, images)
    dice = tissue_dice(seen.labels, labels)
    assert dice[:, [GREY, WHITE]].min() > 0.8
    assert dice.isnan().all(0).tolist() == [label not in (BACKGROUND, GREY, WHITE) for label in range(len(TISSUES))]
    untrained = network_for(1, 8).eval()
    assert tissue_dice(segment(untrained, images).labels, labels)[:, WHITE].max() < 0.5
    assert segment(untrained, images).confidence.max() < seen.confidence.min()


def test_a_training_depends_on_its_seed_alone_and_leaves_the_callers_draws() -> None:
    images, labels = cubes(3)
    torch.manual_seed(5)
    expected = torch.rand(())
    torch.manual_seed(5)
    one, again, other = (train_segmenter(images, labels, steps=2, batch=2, width=8, seed=seed) for seed in (1, 1, 2))
    assert torch.rand(()) == expected
    first, second, third = (next(network.parameters()) for network in (one, again, other))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_features_are_the_encoders_cells(trained: torch.nn.Module) -> None:
    images, _ = cubes(3)
    cells = features(trained, images)
    assert cells.shape == (3, 8, 64)
    assert cells.dtype == torch.float64
    assert torch.allclose(features(trained, images, batch=1), cells, atol=1e-4)
    assert (cells[0] - cells[1]).abs().max() > 1e-3


class Fixed(torch.nn.Module):
    """A network that answers background in one half of a volume, and in the other white, with probability `share`."""

    def __init__(self, share: float, half: bool) -> None:
        super().__init__()
        self.logit = torch.nn.Parameter(torch.tensor(share / (1 - share)).log())
        self.half = half

    def forward(self, images: Tensor) -> Tensor:
        logits = torch.full((len(images), len(TISSUES), *images.shape[2:]), -50.0)
        logits[:, BACKGROUND] = 0
        if self.half:
            logits[:, WHITE, :8] = self.logit
        return logits


def test_confidence_is_that_of_what_is_no_background() -> None:
    images = torch.zeros(2, 1, 16, 16, 16)
    seen = segment(Fixed(0.7, half=True), images)
    assert seen.confidence.tolist() == pytest.approx([0.7, 0.7])
    assert (seen.labels[:, :8] == WHITE).all()
    assert not seen.labels[:, 8:].any()
    assert segment(Fixed(0.7, half=False), images).confidence.isnan().all()


def test_several_channels() -> None:
    images, labels = cubes(2, channels=3)
    network = train_segmenter(images, labels, steps=1, batch=1, width=8)
    assert segment(network, images).labels.shape == labels.shape


@pytest.mark.parametrize("shape", [(1, 16, 16, 16), (1, 1, 12, 16, 16), (0, 1, 16, 16, 16)])
def test_volumes_that_do_not_fit_are_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadInput, match="multiples of 8"):
        segment(network_for(1, 8), torch.zeros(shape))


def test_labels_that_do_not_fit_are_named() -> None:
    images, labels = cubes(2)
    with pytest.raises(BadInput, match=r"labels of shape \(1, 16, 16, 16\)"):
        train_segmenter(images, labels[:1], steps=1)
