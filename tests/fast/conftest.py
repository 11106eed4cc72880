"""Where the tests of CUDA graphs run."""

from __future__ import annotations

import pytest
import torch
from helpers import recordings


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A GPU, or a CPU with a stand-in for graphs."""
    if request.param == "cpu":
        recordings.stand_in(monkeypatch)
    return torch.device(request.param, *([0] if request.param == "cuda" else []))
