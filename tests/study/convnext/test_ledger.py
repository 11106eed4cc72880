"""The CUDA report's numbers: its arithmetic, and a verdict on each, with and without a card's record."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from helpers.repository import ROOT, SHARED

from medddpm.measure.tables import read_table, write_table
from study.convnext import ledger, results, tables
from study.records import schemas

REPORT = ledger.reported(ROOT)


@pytest.fixture
def text() -> str:
    found = sorted((SHARED / "reference").glob("cuda_report_*.txt"))
    if not found:
        pytest.skip("the report's text is not beside this checkout")
    return found[0].read_text(encoding="utf-8")


def test_every_number_is_the_reports(text: str) -> None:
    written = text.replace("×10^{-7}", "e-7").replace("×10^{-5}", "e-5").replace(r"\times 10^{-5}", "e-5")
    written = written.replace(" \\", "").replace(" e-5", "e-5")
    shares = {"0.6667": "two-thirds"}
    missing = [v for v in REPORT["value"] if v != "0" and shares.get(v, v) not in written and v != "5"]
    assert missing == []
    assert "over five times" in written


def test_each_table_has_all_operators_and_a_total() -> None:
    assert REPORT["id"].tolist() == [f"C{n:03d}" for n in range(1, 76)]
    for name in ledger.TABLES:
        assert list(ledger.table_of(REPORT, name)) == [*ledger.OPERATORS, "total"]


def test_the_sums_are_those_of_the_rows() -> None:
    sums = ledger.sums(REPORT)
    assert sums["sum"].round(3).tolist() == [364.147, 10.591, 44.634]
    assert sums["missing"].round(2).tolist() == [18.89, 65.44, 25.99]


def test_contradictions_carry_their_arithmetic() -> None:
    lines = ledger.contradictions(REPORT)
    assert len(lines) == 9
    together = " ".join(lines)
    for part in ("0.046912 ms of 0.075513 ms", "26% of the call", "conv2d takes 0 s in Table II and 37.7 s", "1.64×"):
        assert part in together
    changed = REPORT.assign(value=REPORT["value"].where(REPORT["id"] != "C039", "37.6912"))
    assert "conv2d takes 38 s" not in " ".join(ledger.contradictions(changed))
    assert ledger.sums(changed)["sum"].round(2)["Table II"] == 48.28


def test_without_a_record_times_are_open_and_arithmetic_is_not(tmp_path: Path) -> None:
    verdicts = ledger.verdicts(REPORT, tmp_path).set_index("id")
    assert verdicts["status"].value_counts().to_dict() == {"not_measurable": 54, "reproduced": 15, "differs": 6}
    assert sorted(verdicts.index[verdicts["status"] == "differs"]) == ["C025", "C040", "C055", "C062", "C066", "C069"]
    for name in ("C062", "C069"):
        assert verdicts.loc[name, "reason"].endswith("All but the kernel is 63% of it, which fits.")
    assert "No card's record has it yet." in verdicts.loc["C024", "reason"]


def test_a_cards_record_stands_beside_and_decides_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "figures" / "records" / "H200"
    folder.mkdir(parents=True)
    rows = [("CPU, one thread", 1, "conv2d", 2.5, 10), ("conv2d on the GPU", 1, "conv2d", 0.25, 10)]
    columns = ["variant", "threads", "operator", "seconds", "calls"]
    name = "convnext_operators"
    write_table(pd.DataFrame(rows, columns=columns), folder / f"{name}.csv", results.TABLES[name], {})
    case = {"operator": "block", "batch": 1, "size": "32x32x64", "stride": 1}
    block = {**case, "p10_us": 1.0, "p90_us": 1.0, "samples": 1, "error": 0.0, "gflop": 0.07, "least_mb": 1.0}
    kernels = pd.DataFrame([{**block, "version": "fused", "how": "graph", "median_us": 7.5}])
    write_table(kernels, folder / "convnext_kernels.csv", results.TABLES["convnext_kernels"], {})
    copies = [("to GPU", "pageable", tables.IMAGE_BYTES, 8.0, 8.0, 8.0, 3)]
    copies += [("to CPU", "pageable", size, us, us, us, 3) for size, us in ((12_288, 9.0), (262_144, 40.0))]
    transfers = pd.DataFrame(copies, columns=["what", "memory", "bytes", "median_us", "p10_us", "p90_us", "samples"])
    write_table(transfers, folder / "convnext_transfers.csv", results.TABLES["convnext_transfers"], {})
    verdicts = ledger.verdicts(REPORT, tmp_path).set_index("id")
    found = verdicts[verdicts["status"] == "proxy"]
    beside = {"C024": "2.5", "C039": "0.25", "C059": "0.008", "C061": "0.04", "C063": "7.5e-06"}
    assert found["other_value"].to_dict() == beside
    assert set(found["other_card"]) == {"H200"}
    assert tables.times(kernels, "block", 1)["tflops"].round(2).tolist() == [9.33]


def test_tables_iv_and_v_have_the_reports_numbers_beside_each_cards() -> None:
    found = {name: tables.recorded(ROOT, name)["H200"] for name in ("convnext_transfers", "convnext_kernels")}
    copies = found["convnext_transfers"].assign(median_us=lambda table: table["median_us"] / 2)
    fourth = ledger.table_iv(REPORT, {"H100": copies, "H200": found["convnext_transfers"]})
    assert fourth.columns.tolist() == [
        "report",
        *(f"{c}, {m}" for c in ("H100", "H200") for m in ("pageable", "pinned")),
    ]
    assert fourth["report"].round(3).to_dict() == {"to GPU": 8.192, "kernel": 27.648, "to CPU": 11.072, "whole": 75.513}
    assert (fourth["H100, pageable"] / fourth["H200, pageable"]).tolist() == [0.5] * 4
    fused = found["convnext_kernels"]
    on_gpu_alone = fused[fused["how"] != "processor"]
    fifth = ledger.table_v(REPORT, {"H100": on_gpu_alone, "H200": fused})
    assert fifth.loc["one thread / launched", "report"] == pytest.approx(619.4, abs=0.1)
    assert fifth["H100"].isna().tolist() == [True, True, False, False, True]
    assert fifth["H200"].notna().all()
    assert ledger.table_iv(REPORT, {}).columns.tolist() == ledger.table_v(REPORT, {}).columns.tolist() == ["report"]


def test_the_stored_verdicts_are_those_of_the_records() -> None:
    stored = read_table(ROOT / "figures" / "records" / ledger.VERDICTS, schemas.CLAIMS)
    fresh = ledger.verdicts(REPORT, ROOT)
    assert stored.astype(object).fillna("").to_dict("records") == fresh.astype(object).fillna("").to_dict("records")
