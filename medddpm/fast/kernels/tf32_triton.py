"""Float32 operands of the matrix units, which read the upper 19 bits and cut the rest off."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def nearest(x):
    """Rounds float32 to the nearest TF32, as cuDNN does; cut off, every product would be too small, and sums with them.

    Other dtypes, and NaN, are returned as they are.
    """
    if x.dtype == tl.float32:
        half = 0x1000  # of the last bit that is kept
        rounded = (x.to(tl.int32, bitcast=True) + half) & -0x2000
        return tl.where(x == x, rounded.to(tl.float32, bitcast=True), x)
    else:
        return x
