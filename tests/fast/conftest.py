"""What the tests of the fast path share: small networks of their own count as known, as after `register`."""

from __future__ import annotations

import pytest
from torch import nn

from medddpm.fast import known


@pytest.fixture(autouse=True)
def _toys_are_known(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.module.__name__.rpartition(".")[2] == "test_known":
        return
    is_known = known.is_known

    def of_a_test(module: nn.Module) -> bool:
        places = type(module).__module__.split(".")
        return is_known(module) or "tests" in places or places[0] == "helpers" or places[-1].startswith("test_")

    monkeypatch.setattr(known, "is_known", of_a_test)
