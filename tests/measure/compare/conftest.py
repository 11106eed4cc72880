"""What the tests of `medddpm.measure.compare` share: a reader's file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

TOY = """
import torch
from torch import nn
from torch.nn import functional

class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv3d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm3d(4)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Conv3d(4, 1, 3, padding=1)

    def forward(self, x):
        return self.last(self.drop(self.norm(self.first(x)).relu()))

def build():
    def loss_fn(model, x, y):
        return functional.mse_loss(model(x), y)
    return Toy(), loss_fn, (torch.randn(2, 1, 6, 6, 6), torch.randn(2, 1, 6, 6, 6))
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Writes `TOY`, with words replaced, to a file in a folder with a blank in its name; returns its path."""
    monkeypatch.setattr(sys, "path", list(sys.path))  # which a worker in this process changes
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    before = set(sys.modules)

    def write(*changes: tuple[str, str]) -> Path:
        text = TOY
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "a folder" / "toy_step.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    yield write
    for name in set(sys.modules) - before:
        if name.startswith("toy_step"):
            del sys.modules[name]
