"""numba's `cuda`, on a GPU or in its simulator, and the instructions that numba-cuda has no function for."""

from __future__ import annotations

from numba import config, cuda

SIMULATED = bool(config.ENABLE_CUDASIM)

if SIMULATED:
    from study.convnext.kernels import simulated as instructions
else:
    from study.convnext.kernels import ptx as instructions  # type: ignore[no-redef]

ALIGNMENT = instructions.ALIGNMENT
shuffle_xor = instructions.shuffle_xor
load_four = instructions.load_four
pack_bf16 = instructions.pack_bf16
multiply_bf16 = instructions.multiply_bf16
copy_async = instructions.copy_async
end_copies = instructions.end_copies
wait_copies = instructions.wait_copies

__all__ = [
    "ALIGNMENT", "SIMULATED", "copy_async", "cuda", "end_copies", "load_four", "multiply_bf16", "pack_bf16",
    "shuffle_xor", "wait_copies",
]  # fmt: skip
