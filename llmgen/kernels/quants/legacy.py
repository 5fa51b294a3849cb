"""Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0: blocks of 32 weights with a half-precision scale.

Layouts (ggml-common.h and ggml-quants.c of ggml): d f16, then for the _1 types an
offset m f16, then for 5 bits a 32-bit word of fifth bits, then 16 bytes of nibbles:
byte j holds weight j below and weight j + 16 above.  Q8_0: d and 32 signed bytes.

    Q4_0: w = d (q - 8)   Q4_1: w = d q + m   Q5_0: w = d (q - 16)   Q5_1: w = d q + m

The matrix-vector kernel takes four blocks (128 weights) at once, 16 bytes of each side
by side in the order 0, 2, 1, 3, and both halves of a block add into the same four
lanes.  Scales and offsets are read as 32-bit words, so they come interleaved
[d0 m0 d1 m1 d2 m2 d3 m3] and are multiplied by the activations' [d0 e0 ... d3 e3] in
one step: the even lanes are then spread over the dot products (with the order 0, 2, 1, 3
that never crosses a 128-bit lane), the odd ones add up the offsets' term.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from llmgen.kernels import half
from llmgen.kernels.abi import inline
from llmgen.kernels.dot import dot2_blocks, dot4_pair
from llmgen.kernels.layout import RECORDS
from llmgen.kernels.quants.block import Block
from llmgen.kernels.simd import (
    I32,
    I64,
    binary,
    f32x8,
    fma,
    i8x16,
    i8x32,
    i8x64,
    i64x8,
    load_f16,
    load_f32x8,
    load_i8x32,
    load_i8x64,
    load_i16x32,
    load_s8,
    load_u8,
    load_u32,
    odd4,
    offset,
    permute,
    pointer,
    shuffle,
    splat_value,
    store_f32,
    sum_f32x4,
    sum_f32x16,
    to_float,
    unary,
    undefined,
    zero_f32x8,
)

spread_even = shuffle(f32x8, [0] * 4 + [4] * 4 + [2] * 4 + [6] * 4)
spread_first = shuffle(f32x8, [0] * 8 + [2] * 8)
spread_last = shuffle(f32x8, [4] * 8 + [6] * 8)
low_nibbles = unary(i8x64, i8x64, lambda b, v: b.and_(v, ir.Constant(i8x64.llvm, [15] * 64)))


def _upper_nibbles(b: Any, v: Any) -> Any:
    wide = b.bitcast(v, i64x8.llvm)
    shifted = b.bitcast(b.lshr(wide, ir.Constant(i64x8.llvm, [4] * 8)), i8x64.llvm)
    return b.and_(shifted, ir.Constant(i8x64.llvm, [15] * 64))


high_nibbles = unary(i8x64, i8x64, _upper_nibbles)


ORDER = (0, 2, 1, 3)
"""Blocks as they lie side by side in a register."""


def four_runs(first: int, stride: int) -> Any:
    """``load(p)``: the 16 bytes at p + first of four blocks, in ORDER."""

    def emit(b: Any, p: Any) -> Any:
        runs = [b.load(pointer(b, offset(b, p, first + i * stride)), align=1, typ=i8x16.llvm) for i in ORDER]
        return permute(
            b, permute(b, runs[0], range(32), runs[1]), range(64), permute(b, runs[2], range(32), runs[3])
        )

    return unary(types.intp, i8x64, emit)


def four_scales(stride: int, has_offset: bool) -> Any:
    """``load(p)``: f32x8, d and m of four blocks, interleaved; without an offset d stands in both places."""

    def emit(b: Any, p: Any) -> Any:
        words = ir.VectorType(I32, 4)
        value = undefined(words)
        for i in range(4):
            word = b.load(pointer(b, offset(b, p, i * stride)), align=1, typ=I32)
            value = b.insert_element(value, word, ir.Constant(I32, i))
        scales = half.extend(b, b.bitcast(value, ir.VectorType(ir.IntType(16), 8)))
        return scales if has_offset else permute(b, scales, [0, 0, 2, 2, 4, 4, 6, 6])

    return unary(types.intp, f32x8, emit)


def _keep(b: Any, v: Any, n: Any) -> Any:
    """Scales of the first n blocks; the others become 0 whatever they hold."""
    lanes = ir.Constant(ir.VectorType(I64, 8), [0, 0, 1, 1, 2, 2, 3, 3])
    mask = b.icmp_signed("<", lanes, splat_value(b, n, lanes.type))
    return b.select(mask, v, ir.Constant(f32x8.llvm, [0.0] * 8))


keep_blocks = binary(f32x8, types.int64, f32x8, _keep)


def fifth_bits(first: int, stride: int) -> Any:
    """``load(p)``: i8x16, the words of fifth bits at p + first of four blocks."""

    def emit(b: Any, p: Any) -> Any:
        value = undefined(ir.VectorType(I32, 4))
        for i in range(4):
            word = b.load(pointer(b, offset(b, p, first + i * stride)), align=1, typ=I32)
            value = b.insert_element(value, word, ir.Constant(I32, i))
        return b.bitcast(value, i8x16.llvm)

    return unary(types.intp, i8x16, emit)


def add_fifth(half: int) -> Any:
    """``add(words, v)``: v with 16 added where the fifth bit is set; half: 0 for the first 16 weights of the blocks."""
    lanes = [4 * block + 2 * half + j // 8 for block in ORDER for j in range(16)]
    masks = ir.Constant(i8x64.llvm, [(1 << (j % 8)) - (256 if j % 8 == 7 else 0) for j in range(64)])

    def emit(b: Any, words: Any, v: Any) -> Any:
        chosen = b.and_(permute(b, words, lanes), masks)
        sixteen = ir.Constant(i8x64.llvm, [16] * 64)
        return b.or_(
            v, b.select(b.icmp_unsigned("==", chosen, masks), sixteen, ir.Constant(i8x64.llvm, [0] * 64))
        )

    return binary(i8x16, i8x64, i8x64, emit)


add_fifth_first, add_fifth_second = add_fifth(0), add_fifth(1)


def _nibbles32(b: Any, p: Any) -> Any:
    """16 bytes at p -> 32 nibbles in the order of the weights."""
    v = b.load(pointer(b, p), align=1, typ=i8x16.llvm)
    low = b.and_(v, ir.Constant(i8x16.llvm, [15] * 16))
    high = b.lshr(v, ir.Constant(i8x16.llvm, [4] * 16))
    return permute(b, low, range(32), high)


def _nibbles32_fifth(b: Any, p: Any, bits: Any) -> Any:
    v = _nibbles32(b, p)
    mask = b.bitcast(b.trunc(bits, I32), ir.VectorType(ir.IntType(1), 32))
    return b.select(mask, b.or_(v, ir.Constant(i8x32.llvm, [16] * 32)), v)


nibbles32 = unary(types.intp, i8x32, _nibbles32)
nibbles32_fifth = binary(types.intp, types.int64, i8x32, _nibbles32_fifth)


def _nibble_type(nbytes: int, first: int, second: int | None, zero: int, fifth: int | None) -> Block:
    """A 4- or 5-bit type: nibbles at ``first``, an offset at ``second`` or a ``zero``, fifth bits at ``fifth``."""
    has_offset = second is not None
    runs, scales = four_runs(first, nbytes), four_scales(nbytes, has_offset)
    minus_zero = np.float32(-zero)

    if fifth is None:

        @inline
        def unpack(p):  # type: ignore[no-untyped-def]
            v = runs(p)
            return scales(p), low_nibbles(v), high_nibbles(v)

        @inline
        def weights(p, j):  # type: ignore[no-untyped-def]
            return nibbles32(p + first)
    else:
        bits = fifth_bits(fifth, nbytes)

        @inline
        def unpack(p):  # type: ignore[no-untyped-def]
            v, words = runs(p), bits(p)
            return scales(p), add_fifth_first(words, low_nibbles(v)), add_fifth_second(words, high_nibbles(v))

        @inline
        def weights(p, j):  # type: ignore[no-untyped-def]
            return nibbles32_fifth(p + first, load_u32(p + fifth))

    @inline
    def unpack_tail(p, n):  # type: ignore[no-untyped-def]
        d, low, high = unpack(p)
        return keep_blocks(d, n), low, high

    @inline
    def fold(u, x, a, m):  # type: ignore[no-untyped-def]
        scales, low, high = u
        t = scales * load_f32x8(x + 128)
        s = dot4_pair(low, load_i8x64(x), high, load_i8x64(x + 64))
        return fma(to_float(s), spread_even(t), a), m + t

    @inline
    def finish(a, m):  # type: ignore[no-untyped-def]
        if has_offset:
            return sum_f32x16(a) + sum_f32x4(odd4(m))
        return sum_f32x16(a) + minus_zero * sum_f32x4(odd4(m))

    @inline
    def panel_scales(p, o, stride):  # type: ignore[no-untyped-def]
        d = load_f16(p)
        store_f32(o, d)
        store_f32(o + 64, load_f16(p + 2) if has_offset else d * minus_zero)

    @inline
    def dequantize(p, out):  # type: ignore[no-untyped-def]
        d = load_f16(p)
        m = load_f16(p + 2) if has_offset else d * minus_zero
        bits = load_u32(p + (2 if fifth is None else fifth))
        for i in range(16):
            q = load_u8(p + first + i)
            low, high = q & 15, q >> 4
            if fifth is not None:
                low |= ((bits >> i) & 1) << 4
                high |= ((bits >> (i + 16)) & 1) << 4
            store_f32(out + 4 * i, np.float32(low) * d + m)
            store_f32(out + 4 * (i + 16), np.float32(high) * d + m)

    return Block(
        nbytes=nbytes,
        bits=4 if fifth is None else 5,
        sub_blocks=1,
        step=4,
        x_bytes=RECORDS["split"].nbytes,
        zero_min=zero_f32x8,
        unpack=unpack,
        unpack_tail=unpack_tail,
        fold=fold,
        finish=finish,
        weights=weights,
        panel_scales=panel_scales,
        dequantize=dequantize,
    )


Q4_0 = _nibble_type(18, 2, None, 8, None)
Q4_1 = _nibble_type(20, 4, 2, 0, None)
Q5_0 = _nibble_type(22, 6, None, 16, 2)
Q5_1 = _nibble_type(24, 8, 2, 0, 4)


def _q8_0() -> Block:
    scales = four_scales(34, False)

    @inline
    def unpack(p):  # type: ignore[no-untyped-def]
        return scales(p), load_i8x32(p + 2), load_i8x32(p + 36), load_i8x32(p + 70), load_i8x32(p + 104)

    @inline
    def unpack_tail(p, n):  # type: ignore[no-untyped-def]
        d, w0, w1, w2, w3 = unpack(p)
        return keep_blocks(d, n), w0, w1, w2, w3

    @inline
    def fold(u, x, a, m):  # type: ignore[no-untyped-def]
        d, w0, w1, w2, w3 = u
        t = d * load_f32x8(x + 256)
        s = dot2_blocks(w0, load_i16x32(x), w1, load_i16x32(x + 64))
        a = fma(to_float(s), spread_first(t), a)
        s = dot2_blocks(w2, load_i16x32(x + 128), w3, load_i16x32(x + 192))
        return fma(to_float(s), spread_last(t), a), m

    @inline
    def finish(a, m):  # type: ignore[no-untyped-def]
        return sum_f32x16(a)

    @inline
    def weights(p, j):  # type: ignore[no-untyped-def]
        return load_i8x32(p + 2)

    @inline
    def panel_scales(p, o, stride):  # type: ignore[no-untyped-def]
        store_f32(o, load_f16(p))

    @inline
    def dequantize(p, out):  # type: ignore[no-untyped-def]
        d = load_f16(p)
        for i in range(32):
            store_f32(out + 4 * i, np.float32(load_s8(p + 2 + i)) * d)

    return Block(
        nbytes=34,
        bits=8,
        sub_blocks=1,
        step=4,
        x_bytes=RECORDS["wide"].nbytes,
        zero_min=zero_f32x8,
        unpack=unpack,
        unpack_tail=unpack_tail,
        fold=fold,
        finish=finish,
        weights=weights,
        panel_scales=panel_scales,
        dequantize=dequantize,
        signed=True,
    )


Q8_0 = _q8_0()
