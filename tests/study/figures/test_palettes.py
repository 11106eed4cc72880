"""Palettes: one for each meaning, whose colours readers of every colour vision tell apart."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from helpers.colours import apart, closest, lab

from medddpm.measure.profile.instructions import CLASSES
from study.figures import style
from study.figures.claims import STATUS_COLOURS

PALETTES = {name: getattr(style, name) for name in dir(style) if name.endswith("_COLOURS")} | {"STATUS": STATUS_COLOURS}
LEAST = 15.0  # in CIELAB, between any two colours of a palette, in whichever vision they are closest
PALE = 9.0  # between phases, which are pale grounds in a fixed order
ONE_PAGE = (  # what one page shows together
    (style.SETTING_COLOURS, style.KIND_COLOURS),
    (style.SETTING_COLOURS, style.PHASE_COLOURS),
)


def test_the_simulation_has_the_known_confusions() -> None:
    """Red and green of one lightness are far apart to a full vision, and close to a deuteranope's."""
    red, green = "#B45A5A", "#6E7A3C"
    assert apart(red, green) < 15 < float(((lab(red) - lab(green)) ** 2).sum() ** 0.5)
    assert lab("#FFFFFF") == pytest.approx([100, 0, 0], abs=0.1)
    assert lab("#777777", "tritanopia") == pytest.approx(lab("#777777"), abs=0.5), "grey stays grey"


@pytest.mark.parametrize("name", PALETTES)
def test_any_two_colours_of_a_palette_can_be_told_apart(name: str) -> None:
    palette = PALETTES[name]
    colours = palette.values() if isinstance(palette, dict) else palette
    distance, one, other = closest(list(dict.fromkeys(colours)))
    assert distance > (PALE if name == "PHASE_COLOURS" else LEAST), (one, other)


def test_no_colour_has_two_meanings_on_a_page() -> None:
    for here, there in ONE_PAGE:
        assert not {*here.values()} & {*there.values()}
        full = [float(((lab(one) - lab(other)) ** 2).sum() ** 0.5) for one in here.values() for other in there.values()]
        assert min(full) > LEAST


def test_a_palette_names_each_thing_once() -> None:
    for one, other in combinations([style.SETTING_COLOURS, style.KIND_COLOURS, style.CLASS_COLOURS], 2):
        assert not {*one} & {*other}
    assert {*style.CLASS_COLOURS} - {"other classes"} <= {*CLASSES.values()}


def test_a_cards_window_and_step_differ_in_grey_too() -> None:
    palette = style.source_palette(["H100, step", "H100, window", "H200, window", "H200, step"])
    assert [*palette] == ["H100, window", "H200, window", "H100, step", "H200, step"]
    assert palette["H100, window"] == style.VIEW_COLOURS["window"].lower()
    lightness = sorted(float(lab(colour)[0]) for colour in palette.values())
    assert min(np.diff(lightness)) > 10
    assert [*style.source_palette(["L40S, step"])] == ["L40S, step"]
