"""A measured table joins a machine's records, plain or compressed on either side."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from medddpm.measure import tables
from medddpm.measure.machine import of_machine
from medddpm.measure.schemas import Schema
from medddpm.measure.tables import meta_path, of_any_machine, read_meta, read_table, write_table
from study.records import publishing, schemas

META = {"gpu": "NVIDIA H200", "date": "2026-01-01", "command": "medddpm bench", "failed": {}}
LARGE, SMALL = 0, 1_000_000  # bytes above which a table is compressed


def table(size: str, seconds: float) -> pd.DataFrame:
    row = {"size": size, "source": "phantom", "step": 1, "seconds": seconds, "busy_pct": 99.0, "host_mib": 9.0}
    return pd.DataFrame([{**row, "card_mib": None, "date": "2026-01-01"}])


def of(rows: pd.DataFrame, **machine: str) -> pd.DataFrame:
    """`rows` with the columns of the machine, of which nothing else is known."""
    return rows.assign(**of_machine(machine))


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
    former = META | {"command": "former", "calls": {"2025": 5.0}}
    write_table(of(table("8x8x8", 1.0)), folder / "e.csv", schemas.ENDURANCE, former)
    monkeypatch.setattr(tables, "GZIP_ABOVE", after)
    write_table(of(table(size, 2.0)), out, schemas.ENDURANCE, META | {"calls": {"2026": 7.0}})
    record, described = joined(out, folder)
    assert record.suffix == (".gz" if after == LARGE else ".csv")
    assert described == meta_path(record)
    assert sorted(folder.iterdir()) == sorted([record, described]), "a table is there once"
    unchanged = {} if size == "8x8x8" else {"8x8x8": 1.0}
    rows = read_table(folder / "e.csv", schemas.ENDURANCE)
    assert dict(zip(rows["size"], rows["seconds"], strict=True)) == {**unchanged, size: 2.0}
    assert read_meta(record)["command"] == ("former; medddpm bench" if unchanged else "medddpm bench")
    assert read_meta(record)["calls"] == ({"2025": 5.0} if unchanged else {}) | {"2026": 7.0}
    assert list(of_any_machine(tmp_path, "e.csv", schemas.ENDURANCE)) == ["H200"]


FORMER = Schema({n: column for n, column in schemas.ENDURANCE.columns.items() if not column.later})


def published(tmp_path: Path, before: pd.DataFrame, schema: Schema) -> dict[str, str | None]:
    """The commit of each row by its size, after a row of 16x16x16 has joined a table whose description names c1."""
    folder, out = tmp_path / "H200", tmp_path / "e.csv"
    write_table(before, folder / "e.csv", schema, META | {"commit": "c1"})
    write_table(of(table("16x16x16", 2.0), commit="c2"), out, schemas.ENDURANCE, META | {"commit": "c2"})
    joined(out, folder)
    rows = read_table(folder / "e.csv", schemas.ENDURANCE)
    return dict(zip(rows["size"], rows["commit"], strict=True))


def test_rows_of_before_they_said_their_commit_get_it_from_the_description(tmp_path: Path) -> None:
    commits = published(tmp_path, table("8x8x8", 1.0), FORMER)
    assert commits == {"8x8x8": "c1", "16x16x16": "c2"}


def test_a_row_whose_commit_nobody_knows_gets_none_from_the_description(tmp_path: Path) -> None:
    before = pd.concat([of(table("4x4x4", 1.0), commit="c1"), of(table("8x8x8", 1.0))])
    commits = published(tmp_path, before, schemas.ENDURANCE)
    assert commits == {"4x4x4": "c1", "8x8x8": None, "16x16x16": "c2"}
