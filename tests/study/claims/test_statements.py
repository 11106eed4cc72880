"""Sentences of the paper without a number: their rules can be broken, and the stored verdicts are the records'."""

from __future__ import annotations

import pandas as pd
import pytest
from helpers.repository import ROOT

from medddpm.measure.tables import read_table
from study.claims import findings, statements
from study.claims.conclusions import Judged, Part, row, status_of
from study.generative import tables as generative_tables
from study.parity import tables as parity_tables
from study.records.schemas import CONCLUSIONS


@pytest.mark.parametrize(
    ("holds", "narrower", "status"),
    [
        ((True, True), "", "reproduced"),
        ((True, True), "on one card", "in_part"),
        ((True, False), "", "in_part"),
        ((False, False), "on one card", "differs"),
    ],
)
def test_parts_make_a_status(holds: tuple[bool, ...], narrower: str, status: str) -> None:
    judged = Judged([Part(f"part {n}", "", ok) for n, ok in enumerate(holds)], "by hand", None, "window")
    assert status_of(judged, narrower) == status
    assert row("S1", "said", "a rule", judged, "window", "", narrower)[8] == status


def test_what_no_record_has_is_not_measurable() -> None:
    assert row("S1", "said", "a rule", None, "step", "nothing")[8:] == ("not_measurable", "nothing")
    profiled = statements.by_profiles(statements.BY_PROFILES, {}, "window")
    assert {cells[8] for cells in profiled} == {"not_measurable"}


def networks(**changes: float) -> pd.DataFrame:
    """Two diffusion models, Würstchen's two and a GAN, in FP32 and BF16; `changes` are IPCs and hours of the prior."""
    kinds = {"a": "diffusion", "b": "diffusion", "wuerstchen-prior": "diffusion", "gan": "GAN"}
    ipc = {"a": 1.0, "b": 1.2, "wuerstchen-prior": 1.4, "gan": 2.0}
    hours = {"a": 100.0, "b": 200.0, "wuerstchen-prior": 50.0, "gan": 10.0}
    ipc["wuerstchen-prior"], hours["wuerstchen-prior"] = changes.get("ipc", 1.4), changes.get("hours", 50.0)
    ipc["gan"] = changes.get("gan", 2.0)
    return pd.DataFrame(
        {
            "model": name,
            "kind": kinds[name],
            "precision": precision,
            "ipc_geometric": ipc[name],
            "training_gpu_hours": hours[name],
        }
        for name in kinds
        for precision in ("fp32", "bf16")
    )


def test_figure_2s_sentences_can_be_broken() -> None:
    def holds(**changes: float) -> list[list[bool]]:
        return [[part.holds for part in parts] for parts in statements.figure_2(networks(**changes))]

    assert holds() == [[True, True], [True, True, False]]
    assert holds(gan=1.1)[0] == [False, True], "the GAN lies among them"
    assert holds(hours=5.0)[0] == [True, False]
    assert holds(ipc=1.05)[1] == [False, True, False]
    assert holds(hours=300.0)[1] == [True, False, False]


def test_the_stored_verdicts_on_sentences_are_those_of_the_records() -> None:
    kept = parity_tables.recorded(ROOT, statements.CARD)
    judged = statements.settle(
        findings.every_run(ROOT),
        generative_tables.recorded(ROOT)[statements.CARD],
        parity_tables.parity(kept.quality, reference="BASE", plan="fp32"),
        parity_tables.redrawn(kept.quality, plan="redrawn_fp32"),
    )
    stored = read_table(ROOT / "figures" / "records" / "statements.csv", CONCLUSIONS)
    assert stored.astype(object).fillna("").to_dict("records") == judged.astype(object).fillna("").to_dict("records")
    window = judged[judged["view"] == "window"].set_index("id")["status"].to_dict()
    assert window == {"S1": "reproduced", "S2": "in_part", "S3": "in_part", "S4": "in_part", "S5": "in_part"}
