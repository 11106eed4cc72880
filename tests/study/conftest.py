"""What the tests of the study share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers import forks

from medddpm.study.records import programs


@pytest.fixture(autouse=True, scope="module")
def _forks() -> Iterator[None]:
    """The study's processes are forks, those of a module's fixtures too; where a test starts `medddpm` as a user does,
    they are as in use.
    """
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(programs, "run", forks.run)
        yield
