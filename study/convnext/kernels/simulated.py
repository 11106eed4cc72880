"""The instructions of `ptx` for numba's CUDA simulator, which runs each thread of a block as a thread of Python's.

Where lanes exchange values, all 32 of a warp must arrive; a kernel that leaves one behind ends in BrokenBarrierError.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

ALIGNMENT = None  # the simulator takes no other
SECONDS = 30.0  # a warp that is not complete by then never will be
_making = threading.Lock()


def shuffle_xor(value, mask):
    """Returns the float32 of the lane whose number is this lane's xor mask, in the same warp."""
    lane, values = _exchange(value)
    return values[lane ^ mask]


def load_four(shared, place):
    """Loads four neighbours of a flat array; see `ptx.load_four`."""
    return shared[place], shared[place + 1], shared[place + 2], shared[place + 3]


def pack_bf16(low, high):
    """Rounds two float32 to bfloat16, the nearest even, in one int32: `low` in the lower 16 bits."""
    bits = np.array([low, high], dtype=np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.uint32(rounded[0] | (rounded[1] << 16)).astype(np.int32)


def multiply_bf16(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3):
    """Computes D = A·B + C of a warp, A 16×16 and B 16×8 in bfloat16; see `ptx.multiply_bf16`."""
    lane, parts = _exchange((a0, a1, a2, a3, b0, b1))
    a, b = np.zeros((16, 16), np.float32), np.zeros((16, 8), np.float32)
    for other, (x0, x1, x2, x3, y0, y1) in enumerate(parts):
        row, column = other // 4, 2 * (other % 4)
        a[row, column : column + 2], a[row + 8, column : column + 2] = _unpacked(x0), _unpacked(x1)
        a[row, column + 8 : column + 10], a[row + 8, column + 8 : column + 10] = _unpacked(x2), _unpacked(x3)
        b[column : column + 2, row], b[column + 8 : column + 10, row] = _unpacked(y0), _unpacked(y1)
    row, column = lane // 4, 2 * (lane % 4)
    product = a[[row, row + 8]] @ b[:, column : column + 2]
    return product[0, 0] + c0, product[0, 1] + c1, product[1, 0] + c2, product[1, 1] + c3


def copy_async(shared, to, source, start, count):
    """Copies four float32 at once; see `ptx.copy_async`."""
    for place in range(4):
        shared[to + place] = source[start + place] if count else np.float32(0)


def end_copies():
    """Does nothing, as each copy is done when it returns."""


def wait_copies(pending):
    """Does nothing, as each copy is done when it returns."""


def _unpacked(word):
    halves = np.array([word & 0xFFFF, (word >> 16) & 0xFFFF], dtype=np.uint32)
    return (halves << 16).view(np.float32)


def _exchange(value):
    """Exchanges a value within a warp; returns this thread's lane, and the values of all lanes."""
    thread: Any = threading.current_thread()
    warp, lane = divmod(thread.thread_id, 32)
    with _making:
        warps = thread._manager.__dict__.setdefault("warps", {})
        barrier, values = warps.setdefault(warp, (threading.Barrier(32, timeout=SECONDS), [None] * 32))
    values[lane] = value
    barrier.wait()
    of_all = list(values)
    barrier.wait()  # nobody writes anew before all have read
    return lane, of_all
