"""The device that a run computes on."""

from __future__ import annotations

import multiprocessing
import os
import signal

import pytest
import torch
from torch.utils.data import DataLoader

from medddpm.errors import BadInput
from medddpm.runtime.processes import Handed, iterated, pick_device


class Items:
    """The second is bad, or ends the process that loads it."""

    def __init__(self, killed: bool) -> None:
        self.killed = killed

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        if index == 1 and self.killed:
            os.kill(os.getpid(), signal.SIGKILL)
        if index == 1:
            raise BadInput("the second", "it is bad", "leave it out")
        return index


@pytest.mark.parametrize("killed", [False, True])
def test_loading_processes_end_with_the_error_though_it_is_kept(killed: bool) -> None:
    """Else they end at the interpreter's exit, by a signal, of which PyTorch may print a traceback."""
    loader = DataLoader(Handed(Items(killed)), batch_size=None, num_workers=2)
    try:
        list(iterated(loader))
    except BadInput as error:
        caught = error  # and with it, by its traceback, every frame that it came through
    assert str(caught).startswith("--workers: a process" if killed else "the second: it is bad")
    assert caught.__traceback__ is not None
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("name", "gpus", "said"),
    [
        ("abacus", 0, "there is no abacus here; give auto, cpu, cuda, cuda:1 …"),
        ("cuda", 0, "there is no cuda here: PyTorch finds no NVIDIA GPU; give cpu, or run it on a machine with a GPU"),
        ("cuda:3", 1, "there is no cuda:3 here: the only GPU is cuda:0; give one that is there, or leave it out"),
        (
            "cuda:2",
            2,
            "there is no cuda:2 here: the GPUs are cuda:0 to cuda:1; give one that is there, or leave it out",
        ),
        ("cuda", 1, "there is no cuda:1 here: the only GPU is cuda:0; start at most 1 processes"),
        ("cuda:0", 1, "cuda:0 cannot be used: it is busy; free that GPU, or give another device"),
    ],
)
def test_a_device_that_is_not_there_is_said_with_those_that_are(
    name: str, gpus: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ "Leave it out" would help nobody whose machine has no GPU: `medddpm bench` then refuses as well."""

    def busy(_device: object) -> None:
        raise RuntimeError("it is busy\nCUDA kernel errors might be reported asynchronously")

    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", busy)
    with pytest.raises(BadInput) as refused:
        pick_device(name)
    assert str(refused.value) == f"--device: {said}"


def test_a_full_gpu_is_not_called_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_device: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(torch.cuda, "set_device", full)
    with pytest.raises(torch.OutOfMemoryError):
        pick_device("cuda:0")
