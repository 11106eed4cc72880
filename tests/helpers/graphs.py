"""A stand-in for CUDA graphs on a CPU, and a small network to capture."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from medddpm.runtime import cuda_graphs, nested
from medddpm.runtime.graphed_pass import Pool


class Pretended(Pool):
    """A pool whose graphs are the functions themselves, run again into the same tensors."""

    guard: Callable[[], contextlib.AbstractContextManager[None]]  # undoes what a capture does not do

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._turn = None
        self.owner: object = None

    def capture(self, function: Callable[[], Any]) -> tuple[Any, Any]:
        with type(self).guard():
            found = function()
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        place = next((content for content in cells if isinstance(content, list)), None)  # graph_of

        def replay() -> None:
            if function.__name__ != "backward":
                self.owner = place
            else:
                assert self.owner is place, "another pass has overwritten what this backward pass needs"
            with torch.enable_grad(), cuda_graphs.off():
                again = function()
            with torch.no_grad():
                pairs = zip(nested.tensors(found), nested.tensors(again), strict=True)
                for static, tensor in pairs:
                    static.copy_(tensor)

        return found, replay

    def replay(self, replay: Callable[[], None]) -> None:
        replay()


@contextlib.contextmanager
def buffers_kept(network: nn.Module) -> Iterator[None]:
    kept = [t.clone() for t in network.buffers()]
    yield
    for buffer, before in zip(network.buffers(), kept, strict=True):
        buffer.data.copy_(before)


class Network(nn.Module):
    """Two outputs, a norm, statistics that run, and settings that its user may change."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv3d(2, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.batch = nn.BatchNorm3d(8)
        self.second = nn.Conv3d(8, 3, 1)
        self.aside = nn.Conv3d(8, 2, 1)
        self.both = True
        self.settings = SimpleNamespace(more={"scales": [[1.0, 1.0]]}, array=np.ones(2))
        self.number = torch.tensor(1.0)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor | tuple[Tensor, Tensor]:
        scale = scale * self.settings.more["scales"][0][1] * float(self.settings.array[1])
        h = self.batch(functional.silu(self.norm(self.first(x)))) * scale * self.number
        return (self.second(h), self.aside(h)) if self.both else self.second(h)
