from __future__ import annotations

from pathlib import Path

import pytest

from medddpm.errors import BadInput
from medddpm.study import claims
from medddpm.study.claims import Finding
from medddpm.study.records import CLAIMS, read, write

ROOT = Path(__file__).parents[1]
RUN = {"batch size": 1, "input size": 128, "depth size": 128, "channels": 64}


@pytest.mark.parametrize(
    ("paper", "ours", "tolerance", "status"),
    [
        ("64", "64", 0.0, "reproduced"),
        ("1.45", "1.450", 0.0, "reproduced"),
        ("64", "65", 0.0, "differs"),
        ("0.39", "0.42", 0.10, "reproduced"),
        ("0.39", "0.44", 0.10, "differs"),
        ("0", "0", 0.05, "reproduced"),
        ("Hopper", "Hopper", 0.0, "reproduced"),
        ("3.11.4", "3.12", 0.5, "differs"),
        ("3.11.4", None, 0.0, "not_measurable"),
    ],
)
def test_verdict(paper: str, ours: str | None, tolerance: float, status: str) -> None:
    assert claims.status_of(paper, Finding("window", "so", ours, tolerance)) == status


def test_settled_rows_fit_the_record_and_the_rest_is_open(tmp_path: Path) -> None:
    paper = claims.paper_claims(ROOT)
    found = claims.configuration(RUN) | claims.software(claims.pinned_versions(ROOT)) | claims.cards(paper)
    settled = claims.settle(paper, found)
    assert list(read(write(settled, tmp_path / "claims.csv", CLAIMS, {}), CLAIMS)["id"]) == sorted(found)
    status = settled.set_index("id")["status"]
    assert set(status[["P051", "P052", "P053", "P054"]]) == {"reproduced"}
    assert set(status[["P057", "P058"]]) == {"differs"}
    assert set(status["P008":"P049"]) == {"not_measurable"}
    counts = claims.overview(paper, settled)
    assert dict(counts.loc["all"]) == {
        "reproduced": 4,
        "differs": 2,
        "not_measurable": 42,
        "open": 150,
        "claims": 198,
    }
    assert dict(counts.loc["Table 2"]) == {"reproduced": 0, "differs": 0, "not_measurable": 0, "open": 8, "claims": 8}


def test_another_configuration_differs() -> None:
    paper = claims.paper_claims(ROOT)
    assert list(claims.settle(paper, claims.configuration({"channels": 32}))["status"]) == ["differs"]


def test_nothing_settled_leaves_everything_open() -> None:
    paper = claims.paper_claims(ROOT)
    assert claims.overview(paper, claims.settle(paper, {})).loc["all", "open"] == 198


def test_finding_about_no_claim_is_refused() -> None:
    with pytest.raises(BadInput, match="has no P199"):
        claims.settle(claims.paper_claims(ROOT), {"P199": Finding("window", "so")})


def test_missing_pin_is_named(tmp_path: Path) -> None:
    (tmp_path / "requirements.lock").write_text("numpy==2.4.6\n")
    with pytest.raises(BadInput, match=r"requirements\.lock: pins no version"):
        claims.pinned_versions(tmp_path)
