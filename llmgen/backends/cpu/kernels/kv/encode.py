"""Rows of keys and values, as they are produced -> what the cache keeps of them.

The scale of a block is rounded to f16 first and its codes are the nearest to the values divided by
that, so that a code and its scale belong together.  A NaN, or a value too large for a scale in f16, makes
the scale a NaN, which reaches the logits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from llmgen.backends.cpu.kernels import half
from llmgen.backends.cpu.kernels.abi import inline
from llmgen.backends.cpu.kernels.kv import SCALE_BYTES, VECTOR, KVKind, padded_codes
from llmgen.backends.cpu.kernels.kv.loads import NF4
from llmgen.backends.cpu.kernels.layout import KEY_BLOCK, KEY_GROUP
from llmgen.backends.cpu.kernels.simd import (
    I32,
    I64,
    call_intrinsic,
    f32x16,
    load_f32,
    load_f32x16,
    max_f32x16,
    maximum,
    scalar_storer,
    splat_value,
    store_f16,
    store_f32,
    store_i32,
    unary,
    zero_f32x16,
)

I16 = ir.IntType(16)
store_u8 = scalar_storer(types.int64, ir.IntType(8), "trunc")


def _to_bfloat(b: Any, x: Any) -> Any:
    """The nearest bfloat16, ties to even; a NaN stays one."""
    bits = b.bitcast(x, I32)
    odd = b.and_(b.lshr(bits, ir.Constant(I32, 16)), ir.Constant(I32, 1))
    rounded = b.add(bits, b.add(odd, ir.Constant(I32, 0x7FFF)))
    quiet = b.or_(bits, ir.Constant(I32, 0x400000))
    return b.trunc(b.lshr(b.select(b.fcmp_unordered("uno", x, x), quiet, rounded), ir.Constant(I32, 16)), I16)


store_bf16 = scalar_storer(types.float32, I16, _to_bfloat)
_PLAIN = {"f32": store_f32, "f16": store_f16, "bf16": store_bf16}


# ---- codes --------------------------------------------------------------------------------

as_half = unary(types.float32, types.float32, lambda b, x: half.extend(b, half.narrow(b, x)))
"""A number rounded to f16."""

_SHIFT = np.float32(
    12582912.0
)  # 1.5 * 2^23: added to a small number, it leaves the nearest integer in the lowest bits
low_bits = unary(types.float32, types.int64, lambda b, x: b.zext(b.bitcast(x, I32), I64))


@inline
def nearest_int(x, low, high):  # type: ignore[no-untyped-def]
    """The integer nearest to x, at least low and at most high, ties to even; its lowest bits count."""
    x = low if x < low else x
    x = high if x > high else x
    return low_bits(x + _SHIFT)


def _count_above(b: Any, x: Any) -> Any:
    """How many midpoints between neighbours of NF4 lie below x: the code of the nearest number."""
    middles = [np.float32((low + high) / 2) for low, high in zip(NF4, NF4[1:], strict=False)]
    limits = ir.Constant(f32x16.llvm, [*map(float, middles), float("inf")])
    above = b.fcmp_ordered(">", splat_value(b, x, f32x16.llvm), limits)
    return b.zext(call_intrinsic(b, "llvm.ctpop.i16", I16, [b.bitcast(above, I16)]), I64)


code_nf4 = unary(types.float32, types.int64, _count_above)


@inline
def code_q8_0(x):  # type: ignore[no-untyped-def]
    return nearest_int(x, np.float32(-127.0), np.float32(127.0)) & 255


@inline
def code_q4_0(x):  # type: ignore[no-untyped-def]
    return (nearest_int(x, np.float32(-8.0), np.float32(7.0)) + 8) & 15


@inline
def scale_q8_0(high, low):  # type: ignore[no-untyped-def]
    return (high if high > low or high != high else low) / np.float32(127.0)


@inline
def scale_q4_0(high, low):  # type: ignore[no-untyped-def]
    return high / np.float32(-8.0) if high > low or high != high else low / np.float32(8.0)


@inline
def scale_nf4(high, low):  # type: ignore[no-untyped-def]
    return high if high > low or high != high else low


_CODES: dict[str, tuple[Any, Any]] = {
    "q8_0": (scale_q8_0, code_q8_0),
    "q4_0": (scale_q4_0, code_q4_0),
    "nf4": (scale_nf4, code_nf4),
}
"""Of the largest value of a block and of its negatives -> the scale; of a value divided by the scale -> its code."""


@inline
def larger(a, b):  # type: ignore[no-untyped-def]
    """The larger of both, or the one that is a NaN."""
    return a if a > b or a != a else b


@inline
def extent(x, n):  # type: ignore[no-untyped-def]
    """The largest of n floats at x, and the largest of their negatives; a NaN is the largest of all."""
    top, bottom = zero_f32x16(), zero_f32x16()
    whole = n // VECTOR * VECTOR
    for i in range(0, whole, VECTOR):
        v = load_f32x16(x + 4 * i)
        top, bottom = maximum(top, v), maximum(bottom, zero_f32x16() - v)
    high, low = max_f32x16(top), max_f32x16(bottom)
    for i in range(whole, n):
        v = load_f32(x + 4 * i)
        high, low = larger(v, high), larger(-v, low)
    return high, low


def _block_scale(kind: KVKind) -> Any:
    """``scale(x, n)``: the scale of n values at x, and what they are multiplied by before they become codes."""
    scale = _CODES[kind.key][0]

    @inline
    def block_scale(x, n):  # type: ignore[no-untyped-def]
        high, low = extent(x, n)
        d = as_half(scale(high, low))
        d += d - d  # an infinity becomes a NaN, which no sum hides
        return d, np.float32(1.0) / d if d != np.float32(0.0) else np.float32(0.0)

    return block_scale


# ---- rows ---------------------------------------------------------------------------------


def put_key_of(kind: KVKind) -> Callable[..., Any]:
    """``put(x, n, group, lane)``: the key of n values at x becomes number ``lane`` of the group of 16 keys."""
    if not kind.block:
        return _plain_key(_PLAIN[kind.key], kind.bits // 8)
    return _scaled_key(kind)


def _scaled_key(kind: KVKind) -> Any:
    scale, code, block, pairs = _block_scale(kind), _CODES[kind.key][1], kind.block, kind.bits == 4
    values = 8 if pairs else 4  # of a position in 64 bytes

    @inline
    def quad(x, n, inverse):  # type: ignore[no-untyped-def]
        """The codes of up to four values, a byte for each."""
        word = 0
        for i in range(min(n, 4)):
            word += code(load_f32(x + 4 * i) * inverse) << (8 * i)
        return word

    @inline
    def put(x, n, group, lane):  # type: ignore[no-untyped-def]
        p = group
        for first in range(0, n, block):
            last = min(first + block, n)
            d, inverse = scale(x + 4 * first, last - first)
            for i in range(first, last, values):
                word = quad(x + 4 * i, last - i, inverse)
                if pairs:
                    word += quad(x + 4 * i + 16, last - i - 4, inverse) << 4
                store_i32(p + 4 * lane, word)
                p += 4 * KEY_GROUP
            store_f16(p + SCALE_BYTES * lane, d)
            p += SCALE_BYTES * KEY_GROUP

    return put


def _plain_key(store: Any, size: int) -> Any:
    @inline
    def put(x, n, group, lane):  # type: ignore[no-untyped-def]
        for i in range(n):
            store(group + (i * KEY_GROUP + lane) * size, load_f32(x + 4 * i))

    return put


def put_value_of(kind: KVKind) -> Callable[..., Any]:
    """``put(x, n, block, lane)``: the n values at x become number ``lane`` of the values of a key block."""
    if not kind.block:
        return _plain_value(_PLAIN[kind.key], kind.bits // 8)
    return _scaled_value(kind)


def _plain_value(store: Any, size: int) -> Any:
    @inline
    def put(x, n, block, lane):  # type: ignore[no-untyped-def]
        row = block + lane * ((n + VECTOR - 1) // VECTOR * VECTOR) * size
        for i in range(n):
            store(row + i * size, load_f32(x + 4 * i))

    return put


def _scaled_value(kind: KVKind) -> Any:
    scale, put_codes, block, bits = _block_scale(kind), _codes_of_value(kind), kind.block, kind.bits
    bytes_of = inline(padded_codes)

    @inline
    def put(x, n, key_block, lane):  # type: ignore[no-untyped-def]
        p = key_block
        for first in range(0, n, block):
            here = min(block, n - first)
            d, inverse = scale(x + 4 * first, here)
            row = bytes_of(here, bits)
            put_codes(x + 4 * first, here, inverse, p + lane * row)
            p += KEY_BLOCK * row
            store_f16(p + SCALE_BYTES * lane, d)
            p += KEY_BLOCK * SCALE_BYTES

    return put


def _codes_of_value(kind: KVKind) -> Any:
    """``put(x, n, inverse, out)``: the codes of n values at x, which are one block of a row."""
    code, halves = _CODES[kind.key][1], kind.bits == 4

    @inline
    def bytes_each(x, n, inverse, out):  # type: ignore[no-untyped-def]
        for i in range(n):
            store_u8(out + i, code(load_f32(x + 4 * i) * inverse))

    @inline
    def pairs(x, n, inverse, out):  # type: ignore[no-untyped-def]
        for first in range(0, n, 2 * VECTOR):
            for i in range(first, min(first + VECTOR, n)):
                byte = code(load_f32(x + 4 * i) * inverse)
                if i + VECTOR < n:
                    byte += code(load_f32(x + 4 * (i + VECTOR)) * inverse) << 4
                store_u8(out + first // 2 + i - first, byte)

    return pairs if halves else bytes_each
