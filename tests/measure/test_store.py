"""What stands in a table was measured in one run."""

from __future__ import annotations

from pathlib import Path

import pytest

from medddpm.measure.store import ONE_RUN, Store
from medddpm.runtime.files import write_json

META = {"gpu": "NVIDIA H200", "driver": "580", "cudnn": 91900, "torch": "2.11", "commit": "c1"}


@pytest.mark.parametrize("name", ONE_RUN)
def test_a_result_of_another_run_counts_for_none(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path, META)
    assert store.read("row") is None
    write_json(tmp_path / "row.json", {"ms": [1.0]})
    assert store.read("row") is None, "nobody says what measured it"
    assert store.stamp("row")
    assert (store.read("row") or {})["ms"] == [1.0]
    other = Store(tmp_path, META | {name: "another"})
    assert other.read("row") is None
    assert other.results() == []
    assert other.lacks("row")
