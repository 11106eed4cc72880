"""The functions of the claims beside the paper's table, and the tables that they read."""

from __future__ import annotations

import re

import pandas as pd
import pytest
from helpers.repository import ROOT

from medddpm.measure.schemas import KERNELS
from medddpm.measure.tables import read_table
from study.claims import by_figure
from study.claims.by_figure import PROFILED
from study.claims.cards import deciding_cards, sources
from study.claims.case import Case
from study.claims.kernels import KernelsOfRun
from study.claims.numbers import Number
from study.claims.paper import KERNEL_NAME, MEASURED, REPEATS, claims_of, kind_of, paper_claims
from study.claims.verdicts import Finding

PAPER = paper_claims(ROOT).fillna("").set_index("id")
CLAIMS = {claim.id: claim for claim in claims_of(paper_claims(ROOT))}


def stated(row: pd.Series[str]) -> str:
    """A row of the paper's table in words, as the function of the claim has it."""
    place = row["figure"] or ("the abstract" if row["section"] == "abstract" else f"Section {row['section']}")
    cards = "all cards" if row["gpu"] == "all" else row["gpu"].replace(";", " and ")
    of = f"{cards} {row['config'].replace(';', ' and ')}".rstrip()
    value = f"{row['value']} {row['unit']}".rstrip().replace(" %", "%")
    return f"Judges {place}, {of}, {row['subject']}: {row['metric']} {row['qualifier']} {value}."


def test_every_claim_has_a_function_that_repeats_what_the_paper_states() -> None:
    said = {name: " ".join(str(judge.__doc__).split()) for name, judge in by_figure.ALL.items()}
    assert said == {name: stated(row) for name, row in PAPER.iterrows()}


def test_what_a_claim_is_about_is_where_the_paper_makes_it() -> None:
    places = {
        "Table 1": "property of a card",
        "Table 2": KERNEL_NAME,
        "3.1": "our version",
        "3.2": "our setting",
    }
    place = PAPER["figure"].where(PAPER["figure"] != "", PAPER["section"])
    assert [kind_of(name) for name in PAPER.index] == [places.get(where, MEASURED) for where in place]
    assert set(PROFILED) == {name for name in PAPER.index if kind_of(name) in (MEASURED, KERNEL_NAME)}


class Asked(Exception):
    """Carries the number that the function of a claim asks for."""

    def __init__(self, number: Number) -> None:
        self.number = number


class Asking(Case):
    """A case that measures nothing."""

    def judge(self, number: Number, **how: object) -> Finding:
        raise Asked(number)

    def judge_together(self, number: Number, *how: object, **named: object) -> Finding:
        raise Asked(number)


def asked_for(identity: str) -> Number:
    """The number that the function of a claim measures."""
    with pytest.raises(Asked) as request:
        PROFILED[identity](Asking(CLAIMS[identity], {}, "window"))
    return request.value.number


@pytest.mark.parametrize("identity", [name for name in PROFILED if kind_of(name) == MEASURED and name != "P198"])
def test_a_number_is_measured_under_the_settings_that_the_paper_names(identity: str) -> None:
    number = asked_for(identity)
    said = PAPER.loc[identity, "config"]
    assert number.settings == (("OPT1", "OPT2", "OPT12") if said == "best" else tuple(str(said).split(";")))
    compared = re.search(r"relative to BASE|against (?:BASE|OPT2)|reduction|increase", PAPER.loc[identity, "metric"])
    if identity == "P074":  # compares cards
        assert number.base == ""
    else:
        assert (number.base != "") == (compared is not None)


def test_bandwidths_of_the_papers_cards_are_its_own() -> None:
    said = PAPER[PAPER["metric"] == "memory bandwidth"].set_index("gpu")["value"].astype(float)
    ours = deciding_cards()["bandwidth_gbps"]
    assert ours[said.index].to_dict() == said.to_dict()


def test_a_repeated_claim_repeats_an_earlier_one() -> None:
    assert REPEATS == {"P088": "P083", "P090": "P085", "P132": "P003", "P133": "P004", "P200": "P118"}
    said = ["gpu", "config", "subject", "metric", "value", "unit"]
    folder = ROOT / "figures" / "records" / "H100"
    tables = [read_table(folder / f"kernels_{name}_window_run1.csv", KERNELS) for name in ("base", "opt1")]
    run = KernelsOfRun(pd.concat(tables))
    for name, first in REPEATS.items():
        again = PAPER.loc[name, said].copy()
        if name == "P200":  # of both cards, rounded
            assert (again["gpu"], again["value"], PAPER.loc[first, "value"]) == ("A100;H100", "1.4", "1.44")
            again["gpu"], again["value"] = "H100", "1.44"
            again["metric"] = again["metric"].removesuffix(", both cards")
        assert list(again) == list(PAPER.loc[first, said])
        assert asked_for(name).launches == asked_for(first).launches
        assert asked_for(name).of(run) == asked_for(first).of(run) != []


def test_sources_are_of_table_1_and_say_where_they_were_read() -> None:
    table_1 = [name for name in PAPER.index if kind_of(name) == "property of a card"]
    assert len(table_1) == 42
    assert set(sources()) <= set(table_1)
    assert all(re.match(r"https?://\S+$", row["read_at"]) for row in sources().values())
    nvidia = re.compile(r"https://([\w-]+\.)?nvidia\.com/")
    repeated = [name for name, row in sources().items() if not nvidia.match(row["read_at"])]
    assert repeated == ["P012", "P013", "P023", "P024", "P025", "P042"], "what NVIDIA's own pages did not tell"


def test_every_card_of_the_paper_says_why_it_may_be_absent() -> None:
    cards = deciding_cards()
    assert (cards["absent"].notna() == cards["stands_in_for"].isna()).all()
    assert "CUDA 13 dropped Volta" in cards.loc["V100", "absent"]
