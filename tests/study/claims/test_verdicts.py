from __future__ import annotations

import pandas as pd
import pytest
from helpers.repository import ROOT

from medddpm.errors import BadInput
from medddpm.measure.tables import read_table
from study.claims.paper import MEASURED, Claim, claims_of, kind_of, paper_claims
from study.claims.verdicts import (
    Finding,
    at_tolerances,
    headline,
    measured,
    overview,
    settle,
    status_by_the_change,
    status_of,
    tally,
    tolerance_of,
    two_views,
)
from study.records.schemas import CLAIMS

RATIO = {"metric": "SM cycles, relative to BASE", "unit": "x"}
PLAIN = {"metric": "SM throughput", "unit": "%"}
RANK = {"metric": "rank by cumulative priority score"}


@pytest.mark.parametrize(
    ("paper", "qualifier", "stated", "ours", "tolerance", "status"),
    [
        ("64", "=", PLAIN, "64", 0.0, "reproduced"),
        ("1.45", "=", PLAIN, "1.450", 0.0, "reproduced"),
        ("64", "=", PLAIN, "65", 0.0, "differs"),
        ("0.39", "=", PLAIN, "0.42", 0.10, "reproduced"),
        ("0.39", "=", PLAIN, "0.44", 0.10, "differs"),
        ("0.39", "about", PLAIN, "0.34", 0.10, "differs"),
        ("Hopper", "=", PLAIN, "Hopper", 0.0, "reproduced"),
        ("3.11.4", "=", PLAIN, "3.12", 0.5, "differs"),
        ("3.11.4", "=", PLAIN, None, 0.0, "not_measurable"),
        ("820000000.0", "about", PLAIN, "8.4e+08", 0.2, "reproduced"),
        ("50", "more than", PLAIN, "99", 0.2, "reproduced"),
        ("50", "over", PLAIN, "50.01", 0.2, "reproduced"),
        ("50", "over", PLAIN, "50", 0.2, "differs"),
        ("50", "exceeds", PLAIN, "49.9", 0.2, "differs"),
        ("1", "=", RANK, "1-2", 0.0, "reproduced"),
        ("2", "=", RANK, "1-2", 0.0, "reproduced"),
        ("3", "=", RANK, "1-2", 0.0, "differs"),
        ("1", "=", RANK, "2", 0.0, "differs"),
        ("2", "only", PLAIN, "0.1", 0.2, "reproduced"),
        ("2", "only", PLAIN, "2.5", 0.2, "differs"),
        ("100", "up to", PLAIN, "1000", 0.2, "differs"),
        ("80", "nearly", PLAIN, "97", 0.2, "differs"),
        ("73-80", "about", PLAIN, "60", 0.2, "reproduced"),
        ("73-80", "about", PLAIN, "97", 0.2, "differs"),
        ("0.03-0.10", "=", PLAIN, "0.03-0.11", 0.2, "reproduced"),
        ("0.03-0.10", "=", PLAIN, "0.03-0.13", 0.2, "differs"),
        ("0", "=", PLAIN, "0.4", 0.2, "reproduced"),
        ("0", "=", PLAIN, "0.6", 0.2, "differs"),
        ("0", "=", PLAIN, "0.1", 0.0, "differs"),
        ("1.07", "about", RATIO, "0.99", 0.2, "differs"),
        ("1.07", "about", RATIO, "1.2", 0.2, "reproduced"),
        ("0.95", "=", RATIO, "1.02", 0.2, "differs"),
        ("1.07", "about", RATIO, "1", 0.2, "differs"),
        ("0.95", "=", RATIO, "1.000", 0.2, "differs"),
        ("1.07", "about", RATIO, "1.001", 0.2, "reproduced"),
        ("0.95", "=", RATIO, "0.9999", 0.2, "reproduced"),
        ("1.0", "=", RATIO, "0.9", 0.2, "reproduced"),
        ("1.07", "about", PLAIN, "0.99", 0.2, "reproduced"),
    ],
)
def test_verdict(
    paper: str, qualifier: str, stated: dict[str, str], ours: str | None, tolerance: float, status: str
) -> None:
    claim = Claim("P1", paper, qualifier, "H100", **stated)
    assert status_of(claim, Finding("window", "so", ours, tolerance)) == status


def test_the_tolerance_is_the_policys() -> None:
    claims = {claim.id: claim for claim in claims_of(paper_claims(ROOT)) if kind_of(claim.id) == MEASURED}
    others = {name: tolerance_of(claim) for name, claim in claims.items() if tolerance_of(claim) != 0.2}
    assert others == {"P080": 0.0, "P081": 0.0, "P082": 0.0, "P203": 0.05, "P204": 0.05}


def test_nothing_settled_leaves_everything_open() -> None:
    paper = paper_claims(ROOT)
    assert overview(paper, settle(paper, {})).loc["all", "open"] == 204


def test_finding_about_no_claim_is_refused() -> None:
    with pytest.raises(BadInput, match="has no P205"):
        settle(paper_claims(ROOT), {"P205": Finding("window", "so")})


def test_a_claim_that_the_paper_does_not_make_is_named_in_a_line() -> None:
    paper = paper_claims(ROOT)
    claims = read_table(ROOT / "figures" / "records" / "claims.csv", CLAIMS)
    odd = pd.concat([claims, claims[:1].assign(id="P999")], ignore_index=True)
    for call in (
        lambda: settle(paper.assign(id=["P999", *paper["id"][1:]]), {}),
        lambda: measured(odd),
        lambda: tally(odd),
        lambda: headline(odd),
        lambda: at_tolerances(paper, odd, (0.1,)),
    ):
        with pytest.raises(BadInput, match="claims: there is no claim 'P999'; use the ids of the paper's table"):
            call()


def test_a_measured_claim_without_a_card_is_named_in_a_line() -> None:
    claims = read_table(ROOT / "figures" / "records" / "claims.csv", CLAIMS)
    first = measured(claims)["id"].iloc[0]
    with pytest.raises(BadInput, match=f"claims: {first}: measured, but on no card; name the card"):
        headline(claims.assign(card=claims["card"].where(claims["id"] != first)))


def test_wider_tolerance_reproduces_more_and_leaves_out_what_must_be_equal() -> None:
    paper = paper_claims(ROOT)
    findings = {
        "P100": Finding("window", "so", "0.40", 0.2),
        "P101": Finding("window", "so", "0.22", 0.2),
        "P055": Finding("configuration", "so", "11", 0.0),
        "P003": Finding("window", "no card"),
    }
    counts = at_tolerances(paper, settle(paper, findings), (0.05, 0.25))
    assert counts.to_dict("index") == {
        "5%": {"reproduced": 1, "differs": 1},
        "25%": {"reproduced": 2, "differs": 0},
    }


@pytest.mark.parametrize(("view", "status"), [("card", "checked_against_source"), ("source", "checked_against_source")])
def test_what_a_source_settles_is_checked_or_differs(view: str, status: str) -> None:
    claim = Claim("P1", "2000", "=", "A100", **PLAIN)
    assert status_of(claim, Finding(view, "so", "2039", 0.02)) == status
    assert status_of(claim, Finding(view, "so", "1555", 0.02)) == "differs"
    assert status_of(claim, Finding(view, "so")) == "not_measurable"


@pytest.mark.parametrize(
    ("identity", "view", "ours"),
    [
        ("P051", "configuration", "1"),
        ("P057", "software", "2.0.1"),
        ("P062", "window", "sm80_xmma_fprop_implicit"),
        ("P062", "step", "sm80_xmma_fprop_implicit"),
    ],
)
def test_our_own_settings_and_names_are_reproduced_nowhere(identity: str, view: str, ours: str) -> None:
    (claim,) = (claim for claim in claims_of(paper_claims(ROOT)) if claim.id == identity)
    assert status_of(claim, Finding(view, "so", ours)) == "same_setting_or_name"
    assert status_of(claim, Finding(view, "so", "another")) == "differs"


def test_a_ratio_can_be_held_against_the_change_that_it_states() -> None:
    """1.3 accepts 1.04 to 1.56 of the ratio, and 1.24 to 1.36 of the change; 0.9 is on the other side of 1."""
    claim = Claim("P1", "1.3", "=", "H100", **RATIO)
    wide, near, below = (Finding("window", "so", ours, 0.2) for ours in ("1.5", "1.35", "0.9"))
    assert [status_by_the_change(claim, one) for one in (wide, near, below)] == ["differs", "reproduced", "differs"]
    assert status_of(claim, wide) == "reproduced"
    assert status_by_the_change(Claim("P1", "64", "=", "H100", **PLAIN), Finding("window", "so", "64", 0.2)) is None


def test_another_cards_number_decides_nothing() -> None:
    claim = Claim("P1", "0.39", "=", "H100", **RATIO)
    beside = Finding("window", "so", other_card="H200", other_value="0.39")
    assert status_of(claim, beside) == "proxy"


def test_headline_counts_each_measured_number_once() -> None:
    """Not a setting, a version, a kernel's name or a data sheet; P090 says what P085 does."""
    findings = {
        "P008": Finding("source", "so", "Hopper", 0.02),
        "P051": Finding("configuration", "so", "1"),
        "P057": Finding("software", "so", "2.0.1"),
        "P062": Finding("window", "so", "sm80_xmma_fprop_implicit", card="H100"),
        "P085": Finding("window", "so", "78", 0.2, "H100"),
        "P090": Finding("window", "so", "78", 0.2, "H100"),
        "P100": Finding("window", "so", "0.8", 0.2, "H100"),
        "P101": Finding("window", "so", other_card="H200", other_value="0.18"),
        "P133": Finding("window", "so"),
    }
    settled = settle(paper_claims(ROOT), findings)
    assert list(measured(settled)["id"]) == ["P085", "P100"]
    said = "2 of the paper's numbers were measured on the H100; 1 are reproduced."
    assert headline(settled) == f"{said} Of the 9 rows 1 are not measurable here."
    assert tally(settled).loc[("measured number", "H100")].to_dict() == {
        "reproduced": 1,
        "differs": 1,
        "checked_against_source": 0,
        "same_setting_or_name": 0,
        "proxy": 0,
        "not_measurable": 0,
    }
    assert tally(settled).to_numpy().sum() == len(findings) - 2  # P133 says what P004 does
    assert "None" in headline(settled[settled["id"] == "P101"])


def test_two_views_of_a_card_are_held_against_each_other_whether_it_decides_or_stands_beside() -> None:
    """P090 says what P085 does, P055 is no measurement, and P101 has no step."""
    window = {
        "P055": Finding("configuration", "so", "10", card="H200"),
        "P085": Finding("window", "so", "77", 0.2, "H200"),
        "P090": Finding("window", "so", "77", 0.2, "H200"),
        "P100": Finding("window", "so", "0.8", 0.2, "H100", "H200", "0.4"),
        "P101": Finding("window", "so", other_card="H200", other_value="0.18"),
    }
    step = {
        "P085": Finding("step", "so", other_card="H200", other_value="12"),
        "P100": Finding("step", "so", other_card="H200", other_value="0.38"),
    }
    paper = paper_claims(ROOT)
    table = two_views(paper, settle(paper, window), settle(paper, step), "H200")
    assert table.drop(columns=["paper_value", "tolerance"]).to_dict("split")["data"] == [
        ["P085", "77", "reproduced", "12", "differs"],
        ["P100", "0.4", "reproduced", "0.38", "reproduced"],
    ]
    assert set(table["tolerance"]) == {0.2}
    assert two_views(paper, settle(paper, window), settle(paper, step), "H100").empty
