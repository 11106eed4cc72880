"""What stands in a table was measured in one run."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from medddpm.measure.schemas import Column, Schema
from medddpm.measure.store import ONE_RUN, Store, Table
from medddpm.runtime import signals
from medddpm.runtime.files import write_json
from medddpm.runtime.signals import ended_by_sigterm

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


def test_a_signal_amid_the_tables_waits_until_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal within `torch.no_grad().__exit__` would leave gradients off, and the last tables would fail."""

    def counted(results: Sequence[Mapping[str, Any]]) -> tuple[pd.DataFrame, Mapping[str, Any]]:
        signal.raise_signal(signal.SIGTERM)
        return pd.DataFrame({"ms": [1.0] * len(results)}), {}

    monkeypatch.setattr(signals, "_left", -signals.SAME_SIGNAL)
    write_json(tmp_path / "row.json", {"ms": [1.0]})
    table = Table(tmp_path / "table.csv", Schema({"ms": Column("float64", "time", "ms")}), counted)
    store = Store(tmp_path, META, tables=[table])
    assert store.stamp("row")
    with ended_by_sigterm(), pytest.raises(KeyboardInterrupt):
        store.collect()
    assert len(pd.read_csv(tmp_path / "table.csv")) == 1
