"""A table of several leases names the one of each row, and keeps the anchor's row of every lease."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from helpers.repository import ROOT

from medddpm.measure.tables import meta_path, read_meta, read_table, write_table
from study.bench import leases, results, tables
from study.numbers import networks
from study.records import schemas

RECORD = ROOT / "figures" / "records" / "H200" / "bench.csv"
OURS = ["accelerate", "graphed_step"]


def lease(table: pd.DataFrame, host: str, day: int, **columns: object) -> pd.DataFrame:
    return table.assign(host=host, card=f"card of {host}", date=f"2026-12-{day:02}T10:00:00+00:00", **columns)


@pytest.fixture
def record() -> pd.DataFrame:
    return read_table(RECORD, schemas.BENCH)


def written(table: pd.DataFrame, out: Path) -> Path:
    out.parent.mkdir()
    write_table(table, out, schemas.BENCH, read_meta(RECORD))
    limits = RECORD.with_name(results.CEILINGS_TABLE)
    for path in (limits, meta_path(limits)):
        out.with_name(path.name).write_bytes(path.read_bytes())
    return out


def test_the_anchors_row_of_every_lease_stays(record: pd.DataFrame, tmp_path: Path) -> None:
    records = tmp_path / "figures" / "records" / "H200"
    records.mkdir(parents=True)
    mine = record[(record["network"] == leases.ANCHOR) & (record["setting"] == "accelerate")]
    other = record[(record["network"] == "monai-unet") & (record["setting"] == "accelerate")]
    assert len(mine) == 1
    for day, host in ((1, "b"), (2, "a")):
        table = pd.concat([lease(mine, host, day, median_ms=40.0 + day), lease(other, host, day)])
        copies = results.publish(written(table, tmp_path / host / "bench.csv"), records)
        assert records / leases.ANCHORS in copies
    assert results.publish(written(mine, tmp_path / "old" / "bench.csv"), records)
    published = read_table(records / "bench.csv", schemas.BENCH)
    assert published["network"].tolist() == ["med-ddpm", "monai-unet"], "each row of the record is there once"
    anchors = leases.anchors(tmp_path, "H200")
    assert anchors["median_ms"].tolist() == [41.0, 42.0], "a row without a host is of no lease"
    assert anchors["host"].tolist() == ["b", "a"]
    assert leases.anchors(ROOT, "H100").empty


def test_a_row_is_of_the_leases_that_measured_it(record: pd.DataFrame) -> None:
    rows = record[record["network"] == "monai-unet"].set_index("setting").loc[OURS].reset_index()
    table = pd.concat([lease(rows.iloc[[0]], "z", 1), lease(rows.iloc[[1]], "y", 2)])
    letters = leases.named(table)
    assert letters.to_dict() == {("z", "card of z"): "A", ("y", "card of y"): "B"}
    assert leases.of(table, letters) == "A and B"
    assert leases.of(table.iloc[[1]], letters) == "B"
    assert leases.of(pd.concat([table, rows]), letters) == leases.of(table.iloc[:0], letters) == "–"
    assert leases.named(rows).empty


def readme_rows() -> list[str]:
    return [*networks.rows(ROOT, "best-known"), *networks.rows(ROOT, "others")]


def test_readmes_table_names_leases_once_rows_have_them(record: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    before = readme_rows()
    every = tables.recorded(ROOT)
    unet = every["H100"]["network"] == "monai-unet"
    once = {**every, "H100": pd.concat([every["H100"][~unet], lease(every["H100"][unet], "a", 1)])}
    monkeypatch.setattr(networks, "recorded", lambda _root: once)
    after = readme_rows()
    assert [row.rpartition("|")[0].rpartition("|")[0] + "|" for row in after] == before
    named = {row.split("|")[1]: row.split("|")[-2] for row in after}
    assert named.pop("MONAI `UNet` 128³ ×2") == "A"
    assert set(named.values()) == {"–"}
