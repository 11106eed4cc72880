"""Which process speaks, and how progress is shown where there is no terminal, or one that says it has no width."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import sys
import termios

import pytest
import torch
from tqdm import tqdm

from medddpm.fast.reports import bars, is_first


def test_a_log_gets_a_bar_at_its_beginning_and_its_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)  # which another test may have imported
    for _ in tqdm(range(100_000), **bars()):
        pass
    assert capsys.readouterr().err.count("\r") == 2


@pytest.mark.parametrize(("columns", "width"), [(0, 80), (40, None)])
def test_a_terminal_without_a_width_gets_one(columns: int, width: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(its, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        assert bars() == {"mininterval": 0.1, "ncols": width}
    os.close(ours)


@pytest.mark.parametrize(
    ("environment", "initialized", "speaks"),
    [({}, None, True), ({"RANK": "0"}, None, True), ({"RANK": "3"}, None, False), ({"RANK": "0"}, 1, False)],
)
def test_the_first_rank_speaks(
    environment: dict[str, str], initialized: int | None, speaks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if initialized is not None:
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: initialized)
    assert is_first() == speaks
