"""TQ1_0, TQ2_0, Q1_0 and Q2_0: weights of at most two bits and one scale for a block.

Layouts (ggml-common.h and ggml-quants.c of ggml):

    TQ1_0  of 256: 48 bytes of five and 4 bytes of four ternary digits, d f16
    TQ2_0  of 256: 64 bytes of bit pairs, d f16
    Q1_0   of 128: d f16, 16 bytes of bits
    Q2_0   of 64: d f16, 16 bytes of bit pairs, the weights in their order

    TQ1_0, TQ2_0, Q2_0: w = d (q - 1); Q1_0: w = d where the bit is set, else -d

A byte of TQ1_0 is a fraction of 256, rounded up: times three to the n-th, its next digit
is what three times the rest, which a byte holds, carries over.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from llmgen.backends.cpu.kernels.abi import inline
from llmgen.backends.cpu.kernels.quants.low_bits import bit_pairs
from llmgen.backends.cpu.kernels.quants.scaled import scaled
from llmgen.backends.cpu.kernels.quants.vectors import by_bits, splat_to
from llmgen.backends.cpu.kernels.simd import (
    I64,
    Vec,
    binary,
    i8x16,
    i8x32,
    i32x8,
    load_f16,
    load_i8x16,
    load_i8x32,
    load_u32,
    permute,
    pointer,
    splat,
    unary,
)

i16x32 = Vec("i16", 32)
splat4, splat8 = splat_to(Vec("f32", 4)), splat_to(Vec("f32", 8))

# ---- TQ1_0 -------------------------------------------------------------------------------

_POWERS = [[3**j] * 32 for j in range(5)]
_POWERS += [[1] * 16 + [3] * 16, [9] * 16 + [27] * 16, [81] * 16 + [1] * 4 + [3] * 4 + [9] * 4 + [27] * 4]
"""For each 32 weights: what their bytes are multiplied by."""
_powers = ir.Constant(ir.ArrayType(i16x32.llvm, 8), [ir.Constant(i16x32.llvm, row) for row in _POWERS])


def _digits(b: Any, v: Any, j: Any) -> Any:
    """The bytes of the j-th 32 weights -> digits 0, 1, 2."""
    table = cgutils.global_constant(b, "powers", _powers)
    power = b.load(
        b.gep(table, [ir.Constant(I64, 0), j], source_etype=_powers.type), align=64, typ=i16x32.llvm
    )
    const = lambda value: ir.Constant(i16x32.llvm, [value] * 32)  # noqa: E731
    rest = b.and_(b.mul(b.zext(v, i16x32.llvm), power), const(255))
    return b.trunc(b.lshr(b.mul(rest, const(3)), const(8)), i8x32.llvm)


digits = binary(i8x32, types.int64, i8x32, _digits)
twice = unary(i8x16, i8x32, lambda b, v: permute(b, v, list(range(16)) * 2))


def _with_word(b: Any, v: Any, word: Any) -> Any:
    """16 bytes, then four bytes four times."""
    last = b.bitcast(b.trunc(word, ir.IntType(32)), ir.VectorType(ir.IntType(8), 4))
    return permute(b, v, range(32), permute(b, last, list(range(4)) * 4))


with_word = binary(i8x16, types.int64, i8x32, _with_word)


@inline
def _tq1_weights(p, j):  # type: ignore[no-untyped-def]
    if j < 5:
        return digits(load_i8x32(p), j)
    if j < 7:
        return digits(twice(load_i8x16(p + 32)), j)
    return digits(with_word(load_i8x16(p + 32), load_u32(p + 48)), j)


@inline
def _tq1_scales(p):  # type: ignore[no-untyped-def]
    return splat(load_f16(p + 52))


TQ1_0 = scaled("tq1_0", _tq1_weights, _tq1_scales, zero=1)

# ---- bits and bit pairs --------------------------------------------------------------------


@inline
def _tq2_scales(p):  # type: ignore[no-untyped-def]
    return splat(load_f16(p + 64))


TQ2_0 = scaled("tq2_0", bit_pairs, _tq2_scales, zero=1)


def _pairs_in_order(b: Any, p: Any) -> Any:
    """8 bytes at p -> their 32 bit pairs."""
    kind = i32x8.llvm
    v = b.zext(b.load(pointer(b, p), align=1, typ=ir.VectorType(ir.IntType(8), 8)), kind)
    for shift in (12, 6):  # a byte to two 16-bit halves, each of them to two bytes
        v = b.or_(v, b.shl(v, ir.Constant(kind, [shift] * 8)))
    return b.bitcast(b.and_(v, ir.Constant(kind, [0x03030303] * 8)), i8x32.llvm)


pairs_in_order = unary(types.intp, i8x32, _pairs_in_order)
two_or_none = by_bits(2, 0)


@inline
def _q2_weights(p, j):  # type: ignore[no-untyped-def]
    return pairs_in_order(p + 2 + 8 * j)


@inline
def _q2_scales(p):  # type: ignore[no-untyped-def]
    return splat4(load_f16(p))


Q2_0 = scaled("q2_0", _q2_weights, _q2_scales, zero=1)


@inline
def _q1_weights(p, j):  # type: ignore[no-untyped-def]
    return two_or_none(load_u32(p + 2 + 4 * j))


@inline
def _q1_scales(p):  # type: ignore[no-untyped-def]
    return splat8(load_f16(p))


Q1_0 = scaled("q1_0", _q1_weights, _q1_scales, zero=1)
