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
from llmgen.backends.cpu.kernels.quants.vectors import by_bits, join_i8x32, splat_to
from llmgen.backends.cpu.kernels.simd import (
    I32,
    I64,
    Vec,
    binary,
    i8x16,
    i8x32,
    i8x64,
    i32x8,
    load_f16,
    load_i8x16,
    load_i8x32,
    load_u32,
    permute,
    pointer,
    repeat_i8x32,
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


def _twice(b: Any, v: Any) -> Any:
    return permute(b, v, list(range(16)) * 2)


twice = unary(i8x16, i8x32, _twice)


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


def _digits64(i: int) -> Any:
    """``f(v)``: the bytes of the i-th 64 weights -> digits 0, 1, 2.

    Bytes are multiplied as the upper halves of 16-bit numbers, the even ones and the odd ones by turns: what is
    carried over there is lost, and what three times the rest carries over is the upper half of a product.
    """
    kind, wide = ir.VectorType(ir.IntType(16), 32), ir.VectorType(I32, 32)
    powers = (_POWERS[2 * i] + _POWERS[2 * i + 1])[::2]  # neighbours meet the same one

    def const(values: list[int]) -> Any:
        return ir.Constant(kind, [v - (v >> 15 << 16) for v in values])

    def carried(b: Any, v: Any, by: int) -> Any:
        product = b.mul(b.zext(v, wide), ir.Constant(wide, [by] * 32))
        return b.trunc(b.lshr(product, ir.Constant(wide, [16] * 32)), kind)

    def emit(b: Any, v: Any) -> Any:
        v, odd = b.bitcast(v, kind), const([0xFF00] * 32)
        evens = carried(b, b.mul(v, const([power << 8 & 0xFFFF for power in powers])), 3)
        odds = carried(b, b.mul(b.and_(v, odd), const(powers)), 3 << 8)
        return b.bitcast(b.or_(evens, b.and_(odds, odd)), i8x64.llvm)

    return unary(i8x64, i8x64, emit)


_first, _second, _third, _fourth = (_digits64(i) for i in range(4))
_half_twice = binary(i8x32, i8x16, i8x64, lambda b, v, w: permute(b, v, range(64), _twice(b, w)))


@inline
def _tq1_pairs(p, i):  # type: ignore[no-untyped-def]
    if i == 0:
        return _first(repeat_i8x32(load_i8x32(p)))
    if i == 1:
        return _second(repeat_i8x32(load_i8x32(p)))
    last = load_i8x16(p + 32)
    if i == 2:
        return _third(_half_twice(load_i8x32(p), last))
    return _fourth(join_i8x32(twice(last), with_word(last, load_u32(p + 48))))


TQ1_0 = scaled("tq1_0", _tq1_weights, _tq1_scales, zero=1, pairs=_tq1_pairs)

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
