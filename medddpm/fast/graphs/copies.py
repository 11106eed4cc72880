"""Copies of what a graph writes, in memory that serves again once nothing else holds it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

ADDRESS: Callable[[Tensor], int] = torch._C._storage_address  # type: ignore[attr-defined]
HOLDERS: Callable[[int], int] = torch._C._storage_Use_Count  # of a storage, by its address; views of it count too


class Copies:
    """Copies of the same tensors again and again, as of a network's gradients after each replay.

    A copy is its caller's own: it is overwritten by a later one only if by then no tensor, storage or array shares its
    memory. To allocate each anew takes the host three times as long, which a small network's GPU waits for.

    As of any memory that is allocated for one stream, work on another stream must have ended, or be waited for, when
    the last holder goes: `record_stream` is not asked.
    """

    def __init__(self) -> None:
        self._of: weakref.ref[object] | None = None
        self._stream: Any = None
        self._copies: list[Tensor] = []
        self._storages: list[int] = []
        self._places: list[int] = []

    def __call__(self, sources: list[Tensor], of: object, stream: Any) -> list[Tensor]:
        """Returns a copy of each tensor.

        Args:
            sources: the tensors.
            of: whose they are, each time the same ones: for another's no memory of before serves.
            stream: the current one.
        """
        if self._of is None or self._of() is not of or stream != self._stream:
            self._of, self._stream = weakref.ref(of), stream
            self._copies = []  # freed before more is allocated
            self._copies = list(map(torch.empty_like, sources))
            self._note()
        else:
            holders, places = list(map(HOLDERS, self._storages)), list(map(Tensor.data_ptr, self._copies))
            if max(holders, default=1) > 1 or places != self._places:
                each = zip(self._copies, sources, holders, places, self._places, strict=True)
                self._copies = [
                    t if n == 1 and at == was else torch.empty_like(source) for t, source, n, at, was in each
                ]
                self._note()
        if self._copies:
            torch._foreach_copy_(self._copies, sources)
        return [t.detach() for t in self._copies]

    def _note(self) -> None:
        self._storages = list(map(ADDRESS, self._copies))  # `untyped_storage()` would make an object that holds it, too
        self._places = list(map(Tensor.data_ptr, self._copies))
