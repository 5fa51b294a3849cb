"""Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0: blocks of 32 weights with a half-precision scale.

Layouts (ggml-common.h and ggml-quants.c of ggml): d f16, then for the _1 types an
offset m f16, then for 5 bits a 32-bit word of fifth bits, then 16 bytes of nibbles:
byte j holds weight j below and weight j + 16 above.  Q8_0: d and 32 signed bytes.

    Q4_0: w = d (q - 8)   Q4_1: w = d q + m   Q5_0: w = d (q - 16)   Q5_1: w = d q + m
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from llmgen.backends.cpu.kernels import half
from llmgen.backends.cpu.kernels.abi import inline
from llmgen.backends.cpu.kernels.quants.block import Block, Lanes
from llmgen.backends.cpu.kernels.quants.lanes import (
    ROWS,
    Loads,
    beside,
    bytes_rows,
    first_words,
    gathered,
    high_nibbles,
    i16_rows,
    i32_rows,
    lanes,
    low_nibbles,
    turned,
    widened,
    with_fifth,
)
from llmgen.backends.cpu.kernels.quants.vectors import emit_nibbles32, nibbles32
from llmgen.backends.cpu.kernels.simd import (
    I32,
    binary,
    i8x16,
    i8x32,
    load_f16,
    load_i8x32,
    load_s8,
    load_u8,
    load_u32,
    store_f32,
)

I16 = ir.IntType(16)


def _nibble_lanes(first: int, zero: int | None, fifth: int | None) -> Lanes:
    """Nibbles at ``first`` of a block, fifth bits at ``fifth``; w = d (q - zero), or d q + m without a zero.

    A zero is taken off the sums of integers, exactly: of a large activation that meets a weight of 0, nothing is left.
    """

    def read(b: Any, rows: Loads) -> list[Any]:
        scales = first_words(b, rows, 0) if zero is None else gathered(b, rows(0, I16))
        bits = [] if fifth is None else [gathered(b, rows(fifth, I32))]
        return [scales, *turned(b, rows(first, i8x16.llvm)), *bits]

    def prepare(b: Any, loaded: list[Any]) -> list[Any]:
        scales, *groups = loaded
        words = groups.pop() if fifth is not None else None
        nibbles = [low_nibbles(b, v) for v in groups] + [high_nibbles(b, v) for v in groups]
        if words is not None:
            nibbles = with_fifth(b, words, nibbles)
        if zero is not None:
            return [half.extend(b, scales), *nibbles]
        upper = b.lshr(scales, ir.Constant(scales.type, [16] * ROWS))  # d and m lie side by side
        d, m = (half.extend(b, b.trunc(v, i16_rows.llvm)) for v in (scales, upper))
        return [d, m, *nibbles]

    raw = [i16_rows if zero else i32_rows, *[bytes_rows] * 4, *[i32_rows] * (fifth is not None)]
    return lanes(raw, read, prepare, 4 if fifth is None else 5, zero is None, zero or 0)


def _signed_lanes() -> Lanes:
    """Q8_0: the weights as 16 bits."""

    def read(b: Any, rows: Loads) -> list[Any]:
        halves = [v for at in (2, 18) for v in beside(b, rows(at, i8x16.llvm))]
        return [gathered(b, rows(0, I16)), *halves]

    def prepare(b: Any, loaded: list[Any]) -> list[Any]:
        scales, *registers = loaded
        pairs = [widened(b, v) for v in registers]
        shorts = [pair[odd] for first in (0, 4) for odd in (0, 1) for pair in pairs[first : first + 4]]
        return [half.extend(b, scales), *shorts]

    return lanes([i16_rows, *[i32_rows] * 8], read, prepare, 16, False)


def _nibbles32_fifth(b: Any, p: Any, bits: Any) -> Any:
    v = emit_nibbles32(b, p)
    mask = b.bitcast(b.trunc(bits, I32), ir.VectorType(ir.IntType(1), 32))
    return b.select(mask, b.or_(v, ir.Constant(i8x32.llvm, [16] * 32)), v)


nibbles32_fifth = binary(types.intp, types.int64, i8x32, _nibbles32_fifth)


def _nibble_type(first: int, second: int | None, zero: int, fifth: int | None) -> Block:
    """A 4- or 5-bit type: nibbles at ``first``, an offset at ``second`` or a ``zero``, fifth bits at ``fifth``."""
    has_offset = second is not None

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
        store_f32(o, load_f16(p))
        if has_offset:
            store_f32(o + 64, load_f16(p + 2))

    @inline
    def dequantize(p, out):  # type: ignore[no-untyped-def]
        d = load_f16(p)
        m = load_f16(p + 2) if has_offset else np.float32(-0.0)  # which changes no number
        bits = load_u32(p + (2 if fifth is None else fifth))
        for i in range(16):
            q = load_u8(p + first + i)
            low, high = q & 15, q >> 4
            if fifth is not None:
                low |= ((bits >> i) & 1) << 4
                high |= ((bits >> (i + 16)) & 1) << 4
            store_f32(out + 4 * i, np.float32(low - zero) * d + m)
            store_f32(out + 4 * (i + 16), np.float32(high - zero) * d + m)

    return Block(
        dot=_nibble_lanes(first, None if has_offset else zero, fifth),
        weights=weights,
        panel_scales=panel_scales,
        dequantize=dequantize,
        has_offset=has_offset,
        zero=zero,
    )


Q4_0 = _nibble_type(2, None, 8, None)
Q4_1 = _nibble_type(4, 2, 0, None)
Q5_0 = _nibble_type(6, None, 16, 2)
Q5_1 = _nibble_type(8, 2, 0, 4)


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
        dot=_signed_lanes(),
        weights=weights,
        panel_scales=panel_scales,
        dequantize=dequantize,
        has_offset=False,
    )


Q8_0 = _q8_0()
