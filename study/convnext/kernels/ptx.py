"""Instructions that numba-cuda has no function for, as inline PTX (PTX ISA 9.0, sections 9.7.9 and 9.7.14).

Each is an intrinsic that puts one instruction into the kernel's own code. CUDA C++ linked through
`cuda.declare_device` would need NVRTC and nvJitLink on the reader's machine, and without link-time optimization each
product would be a call; this needs the compiler that numba-cuda has anyway.
"""

from __future__ import annotations

from llvmlite import ir
from numba import cuda, types
from numba.core import cgutils
from numba.cuda.extending import intrinsic

ALIGNMENT = 16  # bytes: of a shared array that `copy_async` fills or `load_four` reads

I32, I64, F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
EVERY_LANE = 0xFFFFFFFF


@cuda.jit(device=True, inline=True)
def shuffle_xor(value, mask):
    """Returns the float32 of the lane whose number is this lane's xor mask, in the same warp."""
    return cuda.shfl_xor_sync(EVERY_LANE, value, mask)


@intrinsic
def load_four(typingctx, shared, place):
    """Loads four neighbours of a flat float32 array at once; their address is a multiple of 16 bytes."""

    def lower(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        start = cgutils.pointer_add(builder, data, builder.mul(arguments[1], I64(4)))
        loaded = builder.load(builder.bitcast(start, ir.PointerType(ir.VectorType(F32, 4))))
        loaded.align = 16
        parts = [builder.extract_element(loaded, I32(k)) for k in range(4)]
        return context.make_tuple(builder, signature.return_type, parts)

    return types.UniTuple(types.float32, 4)(shared, types.int64), lower


@intrinsic
def pack_bf16(typingctx, low, high):
    """Rounds two float32 to bfloat16, the nearest even, in one int32: `low` in the lower 16 bits."""

    def lower(context, builder, signature, arguments):
        code = ir.InlineAsm(ir.FunctionType(I32, [F32, F32]), "cvt.rn.bf16x2.f32 $0, $1, $2;", "=r,f,f")
        return builder.call(code, [arguments[1], arguments[0]])

    return types.int32(types.float32, types.float32), lower


@intrinsic
def multiply_bf16(typingctx, a0, a1, a2, a3, b0, b1, c0, c1, c2, c3):
    """Computes D = A·B + C of a warp: A 16×16 and B 16×8 in bfloat16, C and D 16×8 in float32 (mma.m16n8k16).

    Each lane passes its own parts. With g = lane // 4 and t = lane % 4, a0 holds A[g, 2t:2t+2], a1 A[g+8, 2t:2t+2], a2
    and a3 the same rows at 2t+8; b0 holds B[2t:2t+2, g], b1 B[2t+8:2t+10, g]; c0, c1 are C[g, 2t:2t+2], and c2, c3
    C[g+8, 2t:2t+2], as are the four numbers that it returns of D.
    """

    def lower(context, builder, signature, arguments):
        result = ir.LiteralStructType([F32] * 4)
        text = (
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
        )
        code = ir.InlineAsm(
            ir.FunctionType(result, [I32] * 6 + [F32] * 4),
            text,
            ",".join(["=f"] * 4 + ["r"] * 6 + ["f"] * 4),
            side_effect=True,  # it stays where all lanes of the warp come by
        )
        found = builder.call(code, arguments)
        parts = [builder.extract_value(found, place) for place in range(4)]
        return context.make_tuple(builder, signature.return_type, parts)

    four = types.UniTuple(types.float32, 4)
    return four(*[types.int32] * 6, *[types.float32] * 4), lower


@intrinsic
def copy_async(typingctx, shared, to, source, start, count):
    """Begins to copy four float32 from source[start:] to shared[to:], past the registers (cp.async).

    Args:
        shared: flat float32 array in shared memory; its address at `to` is a multiple of 16 bytes.
        to, start: int64.
        source: flat float32 array in global memory, aligned likewise.
        count: int32, bytes to read: 16, or 0 to write zeros.
    """

    def lower(context, builder, signature, arguments):
        into, of = (
            cgutils.pointer_add(
                builder,
                context.make_array(signature.args[place])(context, builder, arguments[place]).data,
                builder.mul(arguments[place + 1], I64(4)),
            )
            for place in (0, 2)
        )
        near = builder.addrspacecast(into, ir.PointerType(F32, addrspace=3))
        code = ir.InlineAsm(
            ir.FunctionType(ir.VoidType(), [I32, I64, I32]),
            "cp.async.cg.shared.global [$0], [$1], 16, $2;",
            "r,l,r,~{memory}",
            side_effect=True,
        )
        builder.call(code, [builder.ptrtoint(near, I32), builder.ptrtoint(of, I64), arguments[4]])
        return context.get_dummy_value()

    return types.void(shared, types.int64, source, types.int64, types.int32), lower


@intrinsic
def end_copies(typingctx):
    """Closes a group of copies: all that this thread has begun since the last."""
    return types.void(), _plain("cp.async.commit_group;")


@intrinsic
def wait_copies(typingctx, pending):
    """Waits until no more than `pending` (a literal) of this thread's groups of copies are under way."""
    count = pending.literal_value if isinstance(pending, types.IntegerLiteral) else None
    if count is None:
        return None
    return types.void(pending), _plain(f"cp.async.wait_group {count};")


def _plain(text):
    """Returns the lowering of an instruction without operands that memory operations stay in order with."""

    def lower(context, builder, signature, arguments):
        code = ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), text, "~{memory}", side_effect=True)
        builder.call(code, [])
        return context.get_dummy_value()

    return lower
