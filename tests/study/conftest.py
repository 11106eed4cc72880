"""What the tests of the study share."""

from __future__ import annotations

import pytest
from helpers import forks

from medddpm.study.records import programs


@pytest.fixture(autouse=True)
def _forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The study's processes are forks; where a test starts `medddpm` as a user does, they are as in use."""
    monkeypatch.setattr(programs, "run", forks.run)
