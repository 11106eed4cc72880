"""The table of cards says what the code does."""

from __future__ import annotations

import pytest
import torch
from helpers.repository import ROOT

from medddpm.fast.kernels import cards, dispatch
from medddpm.fast.kernels.cards import GENERATIONS, Capability, Generation
from medddpm.measure.tables import read_table
from study.records import schemas

CUDA = torch.device("cuda:0")
ROWS = dict(zip(GENERATIONS, cards.table().splitlines()[2:], strict=True))
CASES = [(generation, capability) for generation in GENERATIONS for capability in generation.capabilities]


@pytest.mark.parametrize(("generation", "capability"), CASES, ids=lambda value: getattr(value, "name", str(value)))
def test_a_row_holds_for_every_card_in_it(
    generation: Generation, capability: Capability, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    monkeypatch.setattr(dispatch, "TRITON", True)
    assert cards.generation(capability) is generation
    _, _, _, triton, convolutions, tested, _ = (cell.strip() for cell in ROWS[generation].split("|"))
    serves = dispatch._serves.__wrapped__(CUDA)
    assert (triton == "yes") == serves == (not dispatch.too_old(CUDA))
    assert (convolutions != "cuDNN's") == dispatch.is_hopper(CUDA)
    assert (tested == "never tested") == (serves and not generation.tested) == bool(cards.untested(capability))


def test_a_card_that_is_not_listed_belongs_to_the_one_before() -> None:
    found = [cards.generation(capability).name for capability in ((3, 5), (7, 2), (8, 8), (10, 9), (13, 0))]
    assert found == [GENERATIONS[i].name for i in (0, 0, 1, 3, 4)]
    assert "13.0" in cards.untested((13, 0))


def test_a_card_said_to_be_tested_has_a_record_of_the_fast_path() -> None:
    tested = {name for generation in GENERATIONS for name in generation.tested}
    recorded = set()
    for path in (ROOT / "figures" / "records").glob("*/bench.csv"):
        table = read_table(path, schemas.BENCH)
        if "FAST" in set(table["setting"]):
            recorded.add(path.parent.name)
    assert tested <= recorded
