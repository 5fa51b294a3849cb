"""Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0: blocks of 32 weights with a half-precision scale.

Layouts (ggml-common.h and ggml-quants.c of ggml): d f16, then for the _1 types an
offset m f16, then for 5 bits a 32-bit word of fifth bits, then 16 bytes of nibbles:
byte j holds weight j below and weight j + 16 above.  Q8_0: d and 32 signed bytes.

    Q4_0: w = d (q - 8)   Q4_1: w = d q + m   Q5_0: w = d (q - 16)   Q5_1: w = d q + m
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from llmgen.kernels import half
from llmgen.kernels.abi import inline
from llmgen.kernels.quants.block import Block
from llmgen.kernels.quants.lanes import (
    ROWS,
    Loads,
    beside,
    first_words,
    gathered,
    high_nibbles,
    lanes,
    low_nibbles,
    turned,
    widened,
    with_fifth,
)
from llmgen.kernels.simd import (
    I32,
    binary,
    i8x16,
    i8x32,
    load_f16,
    load_i8x32,
    load_s8,
    load_u8,
    load_u32,
    permute,
    pointer,
    store_f32,
    unary,
)

I16 = ir.IntType(16)
Emit = Callable[[Any, Loads], list[Any]]


def _nibble_rows(first: int, fifth: int | None) -> Emit:
    """The weights for ``lanes``: nibbles at ``first`` and fifth bits at ``fifth`` of each block."""

    def emit(b: Any, rows: Loads) -> list[Any]:
        registers = turned(b, rows(first, i8x16.llvm))
        nibbles = [low_nibbles(b, v) for v in registers] + [high_nibbles(b, v) for v in registers]
        return nibbles if fifth is None else with_fifth(b, gathered(b, rows(fifth, I32)), nibbles)

    return emit


def _scale_and_offset(b: Any, rows: Loads) -> list[Any]:
    """d and m of each row, which lie side by side."""
    halves = ir.VectorType(I16, ROWS)
    words = first_words(b, rows, 0)
    upper = b.lshr(words, ir.Constant(words.type, [16] * ROWS))
    return [half.extend(b, b.trunc(v, halves)) for v in (words, upper)]


def _scale(b: Any, rows: Loads) -> list[Any]:
    """d of each row."""
    return [half.extend(b, gathered(b, rows(0, I16)))]


def _scale_and_zero(zero: int) -> Emit:
    """d of each row, and as its offset -zero d."""

    def emit(b: Any, rows: Loads) -> list[Any]:
        (d,) = _scale(b, rows)
        return [d, b.fmul(d, ir.Constant(d.type, [-float(zero)] * ROWS))]

    return emit


def _signed_rows(b: Any, rows: Loads) -> list[Any]:
    """The weights of Q8_0 for ``lanes``, as 16 bits."""
    halves = [[widened(b, v) for v in beside(b, rows(at, i8x16.llvm))] for at in (2, 18)]
    return [pair[odd] for half_block in halves for odd in (0, 1) for pair in half_block]


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
    minus_zero = np.float32(-zero)

    if fifth is None:

        @inline
        def weights(p, j):  # type: ignore[no-untyped-def]
            return nibbles32(p + first)
    else:

        @inline
        def weights(p, j):  # type: ignore[no-untyped-def]
            return nibbles32_fifth(p + first, load_u32(p + fifth))

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

    bits_of_weight = 4 if fifth is None else 5
    scales = _scale_and_offset if has_offset else _scale_and_zero(zero)
    return Block(
        nbytes=nbytes,
        bits=bits_of_weight,
        sub_blocks=1,
        dot=lanes(True, _nibble_rows(first, fifth), scales, bits_of_weight),
        weights=weights,
        panel_scales=panel_scales,
        dequantize=dequantize,
    )


Q4_0 = _nibble_type(18, 2, None, 8, None)
Q4_1 = _nibble_type(20, 4, 2, 0, None)
Q5_0 = _nibble_type(22, 6, None, 16, 2)
Q5_1 = _nibble_type(24, 8, 2, 0, 4)


def _q8_0() -> Block:
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
        dot=lanes(False, _signed_rows, _scale, 16),
        weights=weights,
        panel_scales=panel_scales,
        dequantize=dequantize,
        signed=True,
    )


Q8_0 = _q8_0()
