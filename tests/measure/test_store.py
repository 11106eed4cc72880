"""What stands in a table was measured in one run."""

from __future__ import annotations

from pathlib import Path

import pytest

from medddpm.measure.store import ONE_RUN, Store

META = {"gpu": "NVIDIA H200", "driver": "580", "cudnn": 91900, "torch": "2.11", "commit": "c1"}


@pytest.mark.parametrize("name", ONE_RUN)
def test_a_result_of_another_run_counts_for_none(tmp_path: Path, name: str) -> None:
    store, path = Store(tmp_path, META), tmp_path / "row.json"
    assert store.read(path) is None
    store.write(path, {"ms": [1.0]})
    assert (store.read(path) or {})["ms"] == [1.0]
    assert Store(tmp_path, META | {name: "another"}).read(path) is None
