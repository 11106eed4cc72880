"""Copies of many convolution weights from one memory order to the other, several in one launch."""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from medddpm.fast.kernels.operators import operator

TOGETHER = 8  # tensors of a launch
BLOCK = 64  # input channels of a program
TAPS = 32  # at once


@triton.jit
def _relay(
    sources, copies,  # of TOGETHER tensors: (A, B, taps) in memory, and (A, taps, B), or the reverse
    channels,  # B of each
    firsts,  # the first program of each, and the end
    T: tl.constexpr, TO_LAST: tl.constexpr, COUNT: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    for k in tl.static_range(COUNT):
        if (pid >= firsts[k]) & (pid < firsts[k + 1]):
            count = channels[k]
            blocks = tl.cdiv(count, BLOCK_B)
            row = tl.cast((pid - firsts[k]) // blocks, tl.int64) * count * T
            b = (pid - firsts[k]) % blocks * BLOCK_B + tl.arange(0, BLOCK_B)[:, None]
            for start in tl.static_range(0, T, BLOCK_T):
                t = start + tl.arange(0, BLOCK_T)[None, :]
                first, last = row + b * T + t, row + t * count + b
                mask = (b < count) & (t < T)
                x = tl.load(sources[k] + (first if TO_LAST else last), mask=mask)
                tl.store(copies[k] + (last if TO_LAST else first), x.to(copies[k].dtype.element_ty), mask=mask)


def _fake_relay(sources: list[Tensor], copies: list[Tensor]) -> None:
    return None


@operator(_fake_relay, mutates=("copies",))
def relay(sources: list[Tensor], copies: list[Tensor]) -> None:
    """Copies each tensor into its copy of the other memory order, cast to the copy's dtype.

    Args:
        sources: (A, B, D, H, W), not empty, each contiguous or channels-last, on one device.
        copies: of the same shapes, channels-last where the source is contiguous, else contiguous.
    """
    groups: dict[tuple[object, ...], list[tuple[Tensor, Tensor]]] = {}
    for x, y in zip(sources, copies, strict=True):
        groups.setdefault((x[0, 0].numel(), x.is_contiguous(), x.dtype, y.dtype), []).append((x, y))
    for (taps, to_last, *_), pairs in groups.items():
        for start in range(0, len(pairs), TOGETHER):
            _launch(pairs[start : start + TOGETHER], taps, to_last)


def _launch(pairs: Sequence[tuple[Tensor, Tensor]], taps: object, to_last: object) -> None:
    more = TOGETHER - len(pairs)
    xs, ys = zip(*pairs, *[pairs[-1]] * more, strict=True)
    firsts = [0]
    for x, _ in pairs:
        firsts.append(firsts[-1] + x.shape[0] * triton.cdiv(x.shape[1], BLOCK))
    firsts += [firsts[-1]] * more  # the rest have no program
    _relay[(firsts[-1],)](xs, ys, tuple(x.shape[1] for x in xs), tuple(firsts), taps, to_last, TOGETHER, BLOCK, TAPS)
