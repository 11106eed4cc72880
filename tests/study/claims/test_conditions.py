from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from helpers.repository import ROOT

from medddpm.errors import BadInput
from medddpm.measure.schemas import CARD
from medddpm.measure.tables import read_table, write_table
from study.claims import conditions
from study.claims.by_figure import table1
from study.claims.paper import paper_claims
from study.claims.verdicts import overview, settle
from study.records.schemas import CLAIMS

RUN = {"batch size": 1, "input size": 128, "depth size": 128, "channels": 64}


def test_settled_rows_fit_the_record_and_the_rest_is_open(tmp_path: Path) -> None:
    paper = paper_claims(ROOT)
    pinned = conditions.pinned_versions(ROOT)
    findings = conditions.configuration(RUN) | conditions.software(pinned) | conditions.cards(paper, tmp_path)
    settled = settle(paper, findings)
    assert list(read_table(write_table(settled, tmp_path / "claims.csv", CLAIMS, {}), CLAIMS)["id"]) == sorted(findings)
    status = settled.set_index("id")["status"]
    assert set(status[["P051", "P052", "P053", "P054"]]) == {"same_setting_or_name"}
    assert set(status[["P057", "P058"]]) == {"differs"}
    assert set(status[["P059", "P060", "P061"]]) == {"not_measurable"}
    assert set(status["P008":"P049"]) == {"checked_against_source", "differs"}
    counts = overview(paper, settled)
    assert dict(counts.loc["all"]) == {
        "reproduced": 0,
        "same_setting_or_name": 4,
        "differs": 6,
        "checked_against_source": 38,
        "proxy": 0,
        "not_measurable": 3,
        "open": 153,
        "claims": 204,
    }
    assert dict(counts.loc["Table 2", ["open", "claims"]]) == {"open": 8, "claims": 8}


def test_another_configuration_differs() -> None:
    paper = paper_claims(ROOT)
    assert list(settle(paper, conditions.configuration({"channels": 32}))["status"]) == ["differs"]


def test_missing_pin_is_named(tmp_path: Path) -> None:
    (tmp_path / "requirements.lock").write_text("numpy==2.4.6\n")
    with pytest.raises(BadInput, match=r"requirements\.lock: pins no version"):
        conditions.pinned_versions(tmp_path)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A repository with one record of a window, whose description may be changed."""
    source = ROOT / "figures" / "records" / "H200"
    folder = tmp_path / "figures" / "records" / "H200"
    folder.mkdir(parents=True)
    for suffix in ("csv", "meta.json"):
        shutil.copy(source / f"kernels_base_window_run1.{suffix}", folder)
    return tmp_path


def describe(root: Path, **changed: object) -> None:
    path = root / "figures" / "records" / "H200" / "kernels_base_window_run1.meta.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


@pytest.mark.parametrize(("cudnn", "said"), [(91900, "9.19.0"), (8902, "8.9.2"), (90800, "9.8.0"), (8700, "8.7.0")])
def test_software_is_what_the_record_says(recorded: Path, cudnn: int, said: str) -> None:
    describe(recorded, torch="2.0.1", python="3.11.4", ncu="2025.2.1", cuda="12.9", cudnn=cudnn)
    findings = conditions.software(conditions.recorded_versions(recorded))
    settled = settle(paper_claims(ROOT), findings).set_index("id")
    assert settled.at["P061", "our_value"] == said
    assert set(settled["status"].drop("P061")) == {"same_setting_or_name"}
    assert (settled.at["P061", "status"] == "same_setting_or_name") == (said == "8.9.2")


def test_newest_record_gives_the_versions(recorded: Path) -> None:
    folder = recorded / "figures" / "records" / "H200"
    shutil.copy(folder / "kernels_base_window_run1.csv", folder / "kernels_base_window_run2.csv")
    meta = json.loads((folder / "kernels_base_window_run1.meta.json").read_text())
    (folder / "kernels_base_window_run2.meta.json").write_text(
        json.dumps(meta | {"date": "2030-01-01T00:00:00+00:00", "torch": "9.9.9"})
    )
    assert conditions.recorded_versions(recorded)["PyTorch"] == "9.9.9"
    for suffix in ("csv", "meta.json"):
        base = folder / f"kernels_base_window_run1.{suffix}"
        shutil.copy(base, folder / f"kernels_base_window-torch-2-2-2_run1.{suffix}")
    (folder / "kernels_base_window-torch-2-2-2_run1.meta.json").write_text(
        json.dumps(meta | {"date": "2031-01-01T00:00:00+00:00", "torch": "2.2.2"})
    )
    assert conditions.recorded_versions(recorded)["PyTorch"] == "9.9.9", "the book's views do not run under that one"


def test_window_is_the_one_that_was_taken(recorded: Path) -> None:
    def statuses() -> dict[str, str]:
        settled = settle(paper_claims(ROOT), conditions.window(recorded))
        return dict(zip(settled["id"], settled["status"], strict=True))

    assert statuses() == {"P050": "differs", "P055": "same_setting_or_name", "P056": "same_setting_or_name"}
    describe(recorded, launches=99)
    assert statuses() == {"P050": "differs", "P055": "same_setting_or_name", "P056": "differs"}


def test_without_records_software_and_window_cannot_be_told(tmp_path: Path) -> None:
    findings = conditions.window(tmp_path) | conditions.software(conditions.recorded_versions(tmp_path))
    assert {finding.our_value for finding in findings.values()} == {None}
    assert all("site/add_your_card.md" in finding.reason for finding in findings.values())


def test_card_that_is_here_settles_its_column_of_table_1(tmp_path: Path) -> None:
    def verdicts() -> pd.DataFrame:
        paper = paper_claims(ROOT)
        return settle(paper, conditions.cards(paper, tmp_path)).set_index("id")

    rows = [
        ("architecture", "Hopper", "", "driver"),
        ("CUDA cores", "16896", "", "driver"),
        ("memory bandwidth", "3352", "GB/s", "derived: memory clock × bus width"),
        ("L1 cache per SM", "256", "KB", "same architecture (H100 in the paper)"),
    ]
    table = pd.DataFrame(rows, columns=list(CARD.columns))
    write_table(table, tmp_path / "figures" / "records" / "H200" / "card.csv", CARD, {})
    stand_in = verdicts()
    assert set(stand_in["view"]) == {"source"}
    assert stand_in.loc["P009", ["our_value", "other_card", "other_value"]].tolist() == ["16896", "H200", "16896"]
    assert stand_in.at["P009", "status"] == "differs"
    assert pd.isna(stand_in.at["P019", "other_value"]), "taken from the paper"
    write_table(table, tmp_path / "figures" / "records" / "H100" / "card.csv", CARD, {})
    with_driver = verdicts()
    of_driver = with_driver[with_driver["view"] == "card"]
    assert of_driver["status"].to_dict() == {
        "P008": "checked_against_source",
        "P009": "differs",
        "P012": "checked_against_source",
    }
    assert set(of_driver["card"]) == {"H100"}
    assert "NVIDIA H100 Tensor Core GPU Datasheet" in of_driver.at["P012", "reason"]
    assert with_driver.loc["P021":"P046", "reason"].equals(stand_in.loc["P021":"P046", "reason"])


def test_a_property_that_nothing_states_is_not_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table1, "sources", dict)
    paper = paper_claims(ROOT)
    settled = settle(paper, conditions.cards(paper, tmp_path))
    assert set(settled["status"]) == {"not_measurable"}
    assert settled["reason"].str.startswith("Not checked.").all()


def test_the_papers_own_card_tells_the_window_and_the_versions(recorded: Path) -> None:
    """The H100's, however old."""
    shutil.copytree(recorded / "figures" / "records" / "H200", recorded / "figures" / "records" / "H100")
    describe(recorded, date="2030-01-01T00:00:00+00:00", torch="9.9.9")
    assert conditions.recorded_versions(recorded)["PyTorch"] != "9.9.9"
    assert conditions.window(recorded)["P055"].reason == "The windows of the H100 were measured with this value."
