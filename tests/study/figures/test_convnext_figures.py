"""The colours and names of chapter 18's versions, as its record has them."""

from __future__ import annotations

from helpers.repository import ROOT

from study.convnext import tables
from study.figures.convnext import NAMED, colour_of
from study.figures.style import VERSION_COLOURS


def test_the_eight_versions_that_a_roofline_names_were_measured() -> None:
    measured = tables.recorded(ROOT, "convnext_kernels")["H200"]
    for operator, versions in NAMED.items():
        assert set(versions) <= set(tables.times(measured, operator, 64).index)
    assert sum(map(len, NAMED.values())) == 8


def test_a_version_has_the_colour_of_who_wrote_it() -> None:
    drawn = [colour_of(name) for name in ("tiled, 4 outputs", "Triton", "cuDNN TF32", "torch.compile BF16")]
    assert drawn == [VERSION_COLOURS[kind] for kind in ("by hand", "Triton", "library", "library")]
