"""The numbers of a volume, where they are known beforehand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from medddpm.errors import BadInput
from medddpm.quality.measures import (
    Measured,
    Number,
    largest_share,
    lesion_size,
    measure,
    nearest,
    surface_to_volume,
    texture,
)
from medddpm.quality.tissues import CSF, GREY, TUMOUR, VENTRICLES, WHITE, Segmentation

EDGE = 32


def radius() -> Tensor:
    axis = torch.arange(EDGE) - (EDGE - 1) / 2
    return torch.stack(torch.meshgrid(axis, axis, axis, indexing="ij")).square().sum(0).sqrt()


def onion() -> Tensor:
    """Ventricles in white matter in grey matter in fluid."""
    r = radius()
    labels = torch.zeros(EDGE, EDGE, EDGE, dtype=torch.uint8)
    for limit, label in ((14, CSF), (12.5, GREY), (9.5, WHITE), (4, VENTRICLES)):
        labels[r < limit] = label
    return labels


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def numbers(image: Tensor, labels: Tensor | None = None, mask: Tensor | None = None) -> dict[tuple[str, str], float]:
    labels = onion() if labels is None else labels
    mask = (onion() > 0).to(torch.uint8) if mask is None else mask
    seen = Segmentation(labels[None], torch.tensor([0.9]))
    rows = measure(Measured(image[None, None], mask[None], seen, 2.0, onion()[None]), ("t1",))
    assert len({row[1:4] for row in rows}) == len(rows)
    return {(row.metric, row.tissue): row.value for row in rows}


def painted(white: float, grey: float, fluid: float, spread: float) -> Tensor:
    levels = torch.full((7,), -1.0)
    levels[WHITE], levels[GREY], levels[CSF], levels[VENTRICLES] = white, grey, fluid, fluid
    labels = onion()
    image = levels[labels.long()]
    return torch.where(labels > 0, image + spread * noise(EDGE, EDGE, EDGE), image)


def test_volumes_and_dice() -> None:
    measured = numbers(painted(0.6, 0.0, -0.8, 0.1))
    assert measured["volume", "ventricles"] == pytest.approx((onion() == VENTRICLES).sum() * 8 / 1000)
    assert measured["volume", "tumour"] == 0
    assert {measured["dice", tissue] for tissue in ("white", "grey", "csf", "ventricles")} == {1.0}
    without = torch.where(onion() == VENTRICLES, WHITE, onion()).to(torch.uint8)
    lacking = numbers(painted(0.6, 0.0, -0.8, 0.1), without)
    assert lacking["dice", "ventricles"] == 0
    assert math.isnan(lacking["contrast", "grey - ventricles"])


def test_contrast_is_the_difference_in_deviations() -> None:
    measured = numbers(painted(0.6, 0.0, -0.8, 0.1))
    assert measured["contrast", "white - grey"] == pytest.approx(6, rel=0.05)
    assert measured["contrast", "grey - ventricles"] == pytest.approx(8, rel=0.1)
    assert numbers(painted(0.0, 0.6, -0.8, 0.1))["contrast", "white - grey"] == pytest.approx(-6, rel=0.05)


def test_a_ribbon_has_edges_and_a_mottled_mass_has_none() -> None:
    step = 0.1 * 2 / math.sqrt(math.pi)  # the mean difference of two draws of noise of deviation 0.1
    assert numbers(painted(0.6, 0.0, -0.8, 0.1))["edges", "white - grey"] == pytest.approx(0.6 / step, rel=0.05)
    assert numbers(painted(0.3, 0.3, -0.8, 0.1))["edges", "white - grey"] == pytest.approx(1, rel=0.05)
    assert math.isnan(numbers(painted(0.6, 0.0, -0.8, 0.1), torch.zeros_like(onion()))["edges", "white - grey"])


def test_a_flat_volume_has_neither_contrast_nor_texture_however_it_is_segmented() -> None:
    brain, flat = numbers(painted(0.6, 0.0, -0.8, 0.05)), numbers(painted(0.2, 0.2, 0.2, 0.05))
    assert brain["explained", "all"] > 0.9
    assert flat["explained", "all"] < 0.01
    assert abs(flat["contrast", "white - grey"]) < 0.1
    assert brain["texture", "shell 1"] - flat["texture", "shell 1"] > 20
    constant = numbers(painted(0.2, 0.2, 0.2, 0.0))
    assert constant["explained", "all"] == 0
    assert constant["contrast", "white - grey"] == 0


def test_noise_has_its_own_power_in_every_shell() -> None:
    everywhere = torch.ones(48, 48, 48, dtype=torch.bool)
    measured = texture(0.1 * noise(48, 48, 48) + 0.7, everywhere)
    assert measured[1:].tolist() == pytest.approx([-20] * 7, abs=0.4)
    assert measured[0].item() == pytest.approx(-20, abs=1.5)  # few frequencies


def test_texture_does_not_see_the_step_at_the_brains_border() -> None:
    brain = radius() < 13
    dark, bright = (torch.where(brain, level + 0.1 * noise(EDGE, EDGE, EDGE), -1.0) for level in (-0.8, 0.8))
    assert texture(dark, brain).tolist() == pytest.approx(texture(bright, brain).tolist(), abs=0.1)


@pytest.mark.parametrize("r", [6.0, 10.0])
def test_the_surface_of_a_ball(r: float) -> None:
    assert surface_to_volume(radius() < r, 2.0) == pytest.approx(3 / (2 * r), rel=0.12)


def test_a_body_at_the_edge_has_a_surface_there_and_none_has_none() -> None:
    whole = torch.ones(20, 20, 20, dtype=torch.bool)
    assert surface_to_volume(whole, 1.0) == pytest.approx(6 / 20, rel=0.1)
    assert math.isnan(surface_to_volume(~whole, 1.0))


def test_ventricles_in_many_parts_are_less_connected_than_in_one() -> None:
    whole, labels = onion(), onion()
    assert numbers(painted(0.6, 0.0, -0.8, 0.1), whole)["connected", "ventricles"] == 1
    labels[labels == VENTRICLES] = WHITE
    centre = EDGE // 2
    for place, edge in ((centre - 4, 2), (centre, 2), (centre + 4, 4)):
        labels[place : place + edge, centre : centre + 2, centre : centre + 2] = VENTRICLES
    assert numbers(painted(0.6, 0.0, -0.8, 0.1), labels)["connected", "ventricles"] == 4 / (2 + 2 + 4)
    assert math.isnan(largest_share(whole < 0))


def test_background_and_brightness() -> None:
    image = painted(0.4, 0.4, 0.4, 0.0)
    image[onion() == 0] += 0.3
    measured = numbers(image)
    assert measured["background", "all"] == pytest.approx(0.3, abs=1e-6)
    assert measured["brightness", "all"] == pytest.approx(0.4, abs=1e-6)


def test_a_lesions_dice_is_with_the_mask_and_named_by_size() -> None:
    mask = (onion() > 0).to(torch.uint8)
    mask[radius() < 7] = 2
    labels = onion()
    labels[radius() < 7] = TUMOUR
    ml = float((mask == 2).sum()) * 8 / 1000
    measured = numbers(painted(0.6, 0.0, -0.8, 0.1), labels, mask)
    assert measured["dice", lesion_size(ml)] == 1
    assert [lesion_size(ml) for ml in (1, 10, 39, 40)] == [
        "tumour below 10 ml", "tumour, 10 to 40 ml", "tumour, 10 to 40 ml", "tumour from 40 ml",
    ]  # fmt: skip
    assert not [
        key for key in numbers(painted(0.6, 0.0, -0.8, 0.1)) if key[1].startswith("tumour") and key[0] == "dice"
    ]


def test_a_copy_is_found_by_its_name_in_other_brightness() -> None:
    trained = torch.stack(
        [painted(0.6, 0.0, -0.8, 0.0)[None] + 0.2 * noise(6, 1, EDGE, EDGE, EDGE)[i] for i in range(6)]
    )
    stranger = painted(0.6, 0.0, -0.8, 0.0)[None] + 0.2 * noise(7, 1, EDGE, EDGE, EDGE)[6]
    places, correlation = nearest(torch.stack([trained[4], stranger]), trained)
    assert places[0] == 4
    assert correlation[0] == pytest.approx(1, abs=1e-5)
    assert correlation[1] < 0.3


def test_parts_that_do_not_fit_are_named() -> None:
    seen = Segmentation(torch.zeros(1, 8, 8, 8), torch.zeros(1))
    with pytest.raises(BadInput, match="masks of shape"):
        Measured(torch.zeros(1, 1, 8, 8, 8), torch.zeros(1, 8, 8, 9), seen, 1.0)


def test_a_number_says_what_it_is_of() -> None:
    assert Number(0, "dice", "all", "grey", 0.5)._asdict()["tissue"] == "grey"
