"""What tests of replays share."""

from __future__ import annotations

import pytest
import torch
from helpers import recordings


@pytest.fixture(params=["recorded", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A CPU that replays recordings, and a GPU that replays graphs."""
    return recordings.device(request.param, monkeypatch)
