"""Q4_K, Q5_K and Q6_K: superblocks of 256 weights whose small blocks have their own quantized scales.

Layouts (ggml-common.h of ggml):

    Q4_K  d f16, dmin f16, 12 bytes of packed 6-bit scales and mins, 128 bytes of nibbles
    Q5_K  the same with 32 bytes of fifth bits before the nibbles
    Q6_K  128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 int8 scales, d f16

    Q4_K, Q5_K: w = d sc q - dmin m, a block has 32 weights; Q6_K: w = d sc (q - 32), 16 weights
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from llmgen.backends.cpu.kernels import half
from llmgen.backends.cpu.kernels.abi import inline
from llmgen.backends.cpu.kernels.dot import dot4, row_dot
from llmgen.backends.cpu.kernels.quants.block import Block, Row
from llmgen.backends.cpu.kernels.quants.vectors import masked, shift_right
from llmgen.backends.cpu.kernels.simd import (
    I32,
    I64,
    f32x16,
    fma,
    i8x16,
    i8x32,
    i8x64,
    i32x16,
    i64x8,
    load_f16,
    load_f32x16,
    load_i8x16,
    load_i8x32,
    load_i8x64,
    load_s8,
    load_u8,
    offset,
    permute,
    pointer,
    repeat_i8x32,
    shuffle,
    splat,
    store_f32,
    sum_f32x8,
    sum_f32x16,
    to_float,
    unary,
    undefined,
    widen_s8,
)


def _scales(b: Any, p: Any) -> Any:
    """Superblock header at p -> f32x16 [d sc0..3, dmin m0..3, d sc4..7, dmin m4..7].

    The 6-bit fields are put together with 64-bit scalar arithmetic: bytes 0-3 of the
    packed field hold sc0..3, 4-7 hold m0..3 (low 6 bits each), 8-11 hold the low
    nibbles of sc4..7 and above them of m4..7, whose upper bits are the top two bits
    of bytes 0-7.
    """
    const = lambda v: ir.Constant(I64, v)  # noqa: E731
    low = b.load(pointer(b, offset(b, p, 4)), align=1, typ=I64)
    high = b.zext(b.load(pointer(b, offset(b, p, 12)), align=1, typ=I32), I64)
    first = b.and_(low, const(0x3F3F3F3F3F3F3F3F))
    # spread the nibbles of `high`: sc4..7 stay below, m4..7 move to the upper four bytes
    nibbles = b.and_(b.or_(high, b.shl(high, const(28))), const(0x0F0F0F0F0F0F0F0F))
    second = b.or_(nibbles, b.and_(b.lshr(low, const(2)), const(0x3030303030303030)))
    two = ir.VectorType(I64, 2)
    both = b.insert_element(
        b.insert_element(undefined(two), first, ir.Constant(I32, 0)), second, ir.Constant(I32, 1)
    )
    scales = b.uitofp(b.zext(b.bitcast(both, i8x16.llvm), i32x16.llvm), f32x16.llvm)
    halves = ir.VectorType(ir.IntType(16), 2)
    d = b.bitcast(b.load(pointer(b, p), align=1, typ=I32), halves)
    d = half.extend(b, permute(b, d, ([0] * 4 + [1] * 4) * 2))
    return b.fmul(scales, d)


block_scales = unary(types.intp, f32x16, _scales)
spread_pairs = [shuffle(f32x16, [i] * 8 + [j] * 8) for i, j in ((0, 1), (2, 3), (8, 9), (10, 11))]
spread01, spread23, spread45, spread67 = spread_pairs
min_lanes = shuffle(f32x16, [4, 5, 6, 7, 12, 13, 14, 15])


low_nibbles = unary(i8x64, i8x64, lambda b, v: b.and_(v, ir.Constant(i8x64.llvm, [15] * 64)))


def _upper_nibbles(b: Any, v: Any) -> Any:
    wide = b.bitcast(v, i64x8.llvm)
    shifted = b.bitcast(b.lshr(wide, ir.Constant(i64x8.llvm, [4] * 8)), i8x64.llvm)
    return b.and_(shifted, ir.Constant(i8x64.llvm, [15] * 64))


high_nibbles = unary(i8x64, i8x64, _upper_nibbles)


def _two_blocks(b: Any, v: Any) -> Any:
    """32 bytes of nibbles -> 64 weights: the low nibbles, then the high ones."""
    twice = b.bitcast(permute(b, v, list(range(32)) * 2), i64x8.llvm)
    shifted = b.bitcast(b.lshr(twice, ir.Constant(i64x8.llvm, [0] * 4 + [4] * 4)), i8x64.llvm)
    return b.and_(shifted, ir.Constant(i8x64.llvm, [15] * 64))


two_blocks = unary(i8x32, i8x64, _two_blocks)


def _bits_to(position_mask: int, left: list[int], right: list[int]) -> Any:
    """Move bits of a byte vector (64 bytes as 8 lanes) to ``position_mask`` by a shift per lane."""

    def emit(b: Any, v: Any) -> Any:
        wide = b.bitcast(v, i64x8.llvm)
        if any(left):
            wide = b.shl(wide, ir.Constant(i64x8.llvm, left))
        if any(right):
            wide = b.lshr(wide, ir.Constant(i64x8.llvm, right))
        return b.and_(b.bitcast(wide, i8x64.llvm), ir.Constant(i8x64.llvm, [position_mask] * 64))

    return unary(i8x64, i8x64, emit)


# fifth bits of blocks 2i and 2i + 1: bits 2i and 2i + 1 of the 32 bytes, moved to bit 4
fifth0 = _bits_to(16, [4] * 4 + [3] * 4, [0] * 8)
fifth1 = _bits_to(16, [2] * 4 + [1] * 4, [0] * 8)
fifth2 = _bits_to(16, [0] * 8, [0] * 4 + [1] * 4)
fifth3 = _bits_to(16, [0] * 8, [2] * 4 + [3] * 4)
# upper bit pairs of Q6_K, moved to bits 4 and 5
upper_first = _bits_to(0x30, [4] * 4 + [2] * 4, [0] * 8)
upper_second = _bits_to(0x30, [0] * 8, [0] * 4 + [2] * 4)


nibble32, one_bit_to_4, two_bits_to_4 = masked(15), masked(1, 4), masked(3, 4)


@inline
def packed_scale(p, j):  # type: ignore[no-untyped-def]
    """(sc, m) of block j, unpacked one by one; p: the superblock."""
    s = p + 4
    if j < 4:
        return load_u8(s + j) & 63, load_u8(s + j + 4) & 63
    both = load_u8(s + j + 4)
    return (both & 15) | ((load_u8(s + j - 4) >> 6) << 4), (both >> 4) | ((load_u8(s + j) >> 6) << 4)


def _min_type(nibbles: int, fifth: int | None) -> Block:
    """Q4_K or Q5_K: nibbles at ``nibbles``, fifth bits at ``fifth``."""
    q0, q1, q2, q3 = (nibbles + 32 * i for i in range(4))

    @inline
    def unpack(p):  # type: ignore[no-untyped-def]
        v0, v1 = two_blocks(load_i8x32(p + q0)), two_blocks(load_i8x32(p + q1))
        v2, v3 = two_blocks(load_i8x32(p + q2)), two_blocks(load_i8x32(p + q3))
        if fifth is not None:
            h = repeat_i8x32(load_i8x32(p + fifth))
            v0, v1, v2, v3 = v0 | fifth0(h), v1 | fifth1(h), v2 | fifth2(h), v3 | fifth3(h)
        return block_scales(p), v0, v1, v2, v3

    @inline
    def fold(u, x, a, m):  # type: ignore[no-untyped-def]
        scales, v0, v1, v2, v3 = u
        v = scales * load_f32x16(x + 256)
        a = fma(to_float(dot4(v0, load_i8x64(x))), spread01(v), a)
        a = fma(to_float(dot4(v1, load_i8x64(x + 64))), spread23(v), a)
        a = fma(to_float(dot4(v2, load_i8x64(x + 128))), spread45(v), a)
        a = fma(to_float(dot4(v3, load_i8x64(x + 192))), spread67(v), a)
        return a, m + v

    @inline
    def finish(a, m):  # type: ignore[no-untyped-def]
        return sum_f32x16(a) - sum_f32x8(min_lanes(m))

    @inline
    def weights(p, j):  # type: ignore[no-untyped-def]
        v = nibble32(shift_right(load_i8x32(p + nibbles + 32 * (j >> 1)), 4 * (j & 1)))
        if fifth is not None:
            v = v | one_bit_to_4(shift_right(load_i8x32(p + fifth), j))
        return v

    @inline
    def panel_scales(p, o, stride):  # type: ignore[no-untyped-def]
        d, dmin = load_f16(p), load_f16(p + 2)
        for j in range(8):
            sc, m = packed_scale(p, j)
            store_f32(o, d * np.float32(sc))
            store_f32(o + 64, -(dmin * np.float32(m)))
            o += stride

    @inline
    def dequantize(p, out):  # type: ignore[no-untyped-def]
        d, dmin = load_f16(p), load_f16(p + 2)
        for j in range(8):
            sc, m = packed_scale(p, j)
            scale, low = d * np.float32(sc), dmin * np.float32(m)
            for i in range(32):
                q = (load_u8(p + nibbles + 32 * (j >> 1) + i) >> (4 * (j & 1))) & 15
                if fifth is not None:
                    q |= ((load_u8(p + fifth + i) >> j) & 1) << 4
                store_f32(out + 4 * (32 * j + i), scale * np.float32(q) - low)

    return Block(
        dot=Row(unpack, fold, finish),
        weights=weights,
        panel_scales=panel_scales,
        dequantize=dequantize,
    )


Q4_K = _min_type(16, None)
Q5_K = _min_type(48, 16)

spread_quads = [shuffle(f32x16, [4 * i + k // 4 for k in range(16)]) for i in range(4)]
quads0, quads1, quads2, quads3 = spread_quads


def _q6_k() -> Block:
    dot = row_dot(6, 32)

    @inline
    def unpack(p):  # type: ignore[no-untyped-def]
        scales = to_float(widen_s8(load_i8x16(p + 192))) * splat(load_f16(p + 208))
        low, high = load_i8x64(p), repeat_i8x32(load_i8x32(p + 128))
        v0 = low_nibbles(low) | upper_first(high)
        v1 = high_nibbles(low) | upper_second(high)
        low, high = load_i8x64(p + 64), repeat_i8x32(load_i8x32(p + 160))
        v2 = low_nibbles(low) | upper_first(high)
        v3 = high_nibbles(low) | upper_second(high)
        return scales, v0, v1, v2, v3

    @inline
    def fold(u, x, a, m):  # type: ignore[no-untyped-def]
        scales, v0, v1, v2, v3 = u
        v = scales * load_f32x16(x + 320)
        a = fma(to_float(dot(v0, load_i8x64(x))), quads0(v), a)
        a = fma(to_float(dot(v1, load_i8x64(x + 64))), quads1(v), a)
        a = fma(to_float(dot(v2, load_i8x64(x + 128))), quads2(v), a)
        return fma(to_float(dot(v3, load_i8x64(x + 192))), quads3(v), a), m

    @inline
    def finish(a, m):  # type: ignore[no-untyped-def]
        return sum_f32x16(a)

    @inline
    def weights(p, j):  # type: ignore[no-untyped-def]
        half, quarter = j >> 2, j & 3
        low = nibble32(shift_right(load_i8x32(p + 64 * half + 32 * (quarter & 1)), 4 * (quarter >> 1)))
        return low | two_bits_to_4(shift_right(load_i8x32(p + 128 + 32 * half), 2 * quarter))

    @inline
    def panel_scales(p, o, stride):  # type: ignore[no-untyped-def]
        d = load_f16(p + 208)
        for j in range(8):
            for k in range(2):
                store_f32(o + 128 * k, d * np.float32(load_s8(p + 192 + 2 * j + k)))
            o += stride

    @inline
    def dequantize(p, out):  # type: ignore[no-untyped-def]
        d = load_f16(p + 208)
        for j in range(8):
            half, quarter = j >> 2, j & 3
            for i in range(32):
                q = (load_u8(p + 64 * half + 32 * (quarter & 1) + i) >> (4 * (quarter >> 1))) & 15
                q |= ((load_u8(p + 128 + 32 * half + i) >> (2 * quarter)) & 3) << 4
                scale = d * np.float32(load_s8(p + 192 + 2 * j + (i >> 4)))
                store_f32(out + 4 * (32 * j + i), scale * np.float32(q - 32))

    return Block(
        dot=Row(unpack, fold, finish),
        weights=weights,
        panel_scales=panel_scales,
        dequantize=dequantize,
        has_offset=False,
        zero=32,
    )


Q6_K = _q6_k()
