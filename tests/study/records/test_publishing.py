"""What was measured joins a machine's records, plain or compressed on either side."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from medddpm.study.records import publishing, schemas, tables
from medddpm.study.records.tables import meta_path, of_any_machine, read_meta, read_table, write_table

META = {"gpu": "NVIDIA H200", "date": "2026-01-01", "command": "medddpm bench", "failed": {}}
LARGE, SMALL = 0, 1_000_000  # bytes above which a table is compressed


def table(size: str, seconds: float) -> pd.DataFrame:
    row = {"size": size, "source": "phantom", "step": 1, "seconds": seconds, "busy_pct": 99.0, "host_mib": 9.0}
    return pd.DataFrame([{**row, "card_mib": None, "date": "2026-01-01"}])


def joined(out: Path, folder: Path) -> list[Path]:
    return publishing.joined(out, folder, schemas.ENDURANCE, ("size",), lambda rows: rows.sort_values("size"))


@pytest.mark.parametrize("after", [LARGE, SMALL], ids=["compressed", "plain"])
@pytest.mark.parametrize("before", [LARGE, SMALL], ids=["compressed before", "plain before"])
@pytest.mark.parametrize("size", ["16x16x16", "8x8x8"], ids=["another row", "the same row"])
def test_a_record_is_found_however_it_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, after: int, size: str
) -> None:
    folder, out = tmp_path / "figures" / "records" / "H200", tmp_path / "runs" / "e.csv"
    monkeypatch.setattr(tables, "GZIP_ABOVE", before)
    write_table(table("8x8x8", 1.0), folder / "e.csv", schemas.ENDURANCE, META | {"command": "former"})
    monkeypatch.setattr(tables, "GZIP_ABOVE", after)
    write_table(table(size, 2.0), out, schemas.ENDURANCE, META)
    record, described = joined(out, folder)
    assert record.suffix == (".gz" if after == LARGE else ".csv")
    assert described == meta_path(record)
    assert sorted(folder.iterdir()) == sorted([record, described]), "a table is there once"
    kept = {} if size == "8x8x8" else {"8x8x8": 1.0}
    rows = read_table(folder / "e.csv", schemas.ENDURANCE)
    assert dict(zip(rows["size"], rows["seconds"], strict=True)) == {**kept, size: 2.0}
    assert read_meta(record)["command"] == ("former; medddpm bench" if kept else "medddpm bench")
    assert list(of_any_machine(tmp_path, "e.csv", schemas.ENDURANCE)) == ["H200"]
