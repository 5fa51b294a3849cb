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
from numba.extending import intrinsic

from llmgen.backends.cpu.kernels import half
from llmgen.backends.cpu.kernels.abi import inline
from llmgen.backends.cpu.kernels.kv import SCALE_BYTES, VECTOR, KVKind, padded_codes
from llmgen.backends.cpu.kernels.kv.loads import NF4
from llmgen.backends.cpu.kernels.kv.rows import extent, load_first
from llmgen.backends.cpu.kernels.layout import KEY_BLOCK, KEY_GROUP
from llmgen.backends.cpu.kernels.simd import (
    I32,
    I64,
    binary,
    f32x16,
    i8x16,
    i16x16,
    i32x16,
    offset,
    pointer,
    splat,
    store_f16,
    storer,
    unary,
)

store_i8x16 = storer(i8x16)


def _all(vec: Any, value: float) -> ir.Constant:
    return ir.Constant(vec.llvm, [value] * 16)


# ---- float kinds --------------------------------------------------------------------------


def _to_bfloats(b: Any, x: Any) -> Any:
    """f32x16 -> i16x16: the nearest bfloat16, ties to even; a NaN stays one."""
    bits = b.bitcast(x, i32x16.llvm)
    odd = b.and_(b.lshr(bits, _all(i32x16, 16)), _all(i32x16, 1))
    rounded = b.add(bits, b.add(odd, _all(i32x16, 0x7FFF)))
    quiet = b.or_(bits, _all(i32x16, 0x400000))
    upper = b.lshr(b.select(b.fcmp_unordered("uno", x, x), quiet, rounded), _all(i32x16, 16))
    return b.trunc(upper, i16x16.llvm)


_PLAIN: dict[str, Callable[[Any, Any], Any]] = {
    "f32": lambda b, x: b.bitcast(x, i32x16.llvm),
    "f16": half.narrow,
    "bf16": _to_bfloats,
}
"""f32x16 -> sixteen numbers as they are kept."""


def _put_plain(kind: KVKind, stride: int) -> Any:
    """``put(v, n, address)``: the first n of 16 numbers as they are kept, ``stride`` bytes apart."""

    @intrinsic
    def function(typing_context: Any, v: Any, n: Any, address: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            numbers = _PLAIN[kind.key](b, args[0])
            for i in range(VECTOR):
                with b.if_then(b.icmp_signed(">", args[1], ir.Constant(I64, i))):
                    number = b.extract_element(numbers, ir.Constant(I32, i))
                    b.store(number, pointer(b, offset(b, args[2], stride * i)), align=1)
            return context.get_dummy_value()

        return types.void(f32x16, types.int64, types.intp), generate

    return function


# ---- codes --------------------------------------------------------------------------------

as_half = unary(types.float32, types.float32, lambda b, x: half.extend(b, half.narrow(b, x)))
"""A number rounded to f16."""

_SHIFT = 12582912.0  # 1.5 * 2^23: added to a small number, it leaves the nearest integer in the lowest bits


def _nearest(b: Any, x: Any, low: float, high: float) -> Any:
    """f32x16 -> i32x16: the nearest integers from low to high, ties to even; their lowest bits count."""
    x = b.select(b.fcmp_ordered("<", x, _all(f32x16, low)), _all(f32x16, low), x)
    x = b.select(b.fcmp_ordered(">", x, _all(f32x16, high)), _all(f32x16, high), x)
    return b.bitcast(b.fadd(x, _all(f32x16, _SHIFT)), i32x16.llvm)


def _codes_q8_0(b: Any, x: Any) -> Any:
    return _nearest(b, x, -127.0, 127.0)


def _codes_q4_0(b: Any, x: Any) -> Any:
    return b.and_(b.add(_nearest(b, x, -8.0, 7.0), _all(i32x16, 8)), _all(i32x16, 15))


def _codes_nf4(b: Any, x: Any) -> Any:
    """How many midpoints between neighbours of NF4 lie below each: the codes of the nearest numbers."""
    codes = _all(i32x16, 0)
    for low, high in zip(NF4, NF4[1:], strict=False):
        middle = _all(f32x16, float(np.float32((low + high) / 2)))
        codes = b.sub(codes, b.sext(b.fcmp_ordered(">", x, middle), i32x16.llvm))
    return codes


@inline
def scale_q8_0(high, low):  # type: ignore[no-untyped-def]
    return (high if high > low or high != high else low) / np.float32(127.0)


@inline
def scale_q4_0(high, low):  # type: ignore[no-untyped-def]
    return high / np.float32(-8.0) if high > low or high != high else low / np.float32(8.0)


@inline
def scale_nf4(high, low):  # type: ignore[no-untyped-def]
    return high if high > low or high != high else low


_CODES: dict[str, tuple[Any, Callable[[Any, Any], Any]]] = {
    "q8_0": (scale_q8_0, _codes_q8_0),
    "q4_0": (scale_q4_0, _codes_q4_0),
    "nf4": (scale_nf4, _codes_nf4),
}
"""Of the largest value of a block and of its negatives -> the scale; of values divided by the scale -> their codes."""


def _in_pairs(b: Any, low: Any, high: Any) -> Any:
    return b.or_(low, b.shl(high, _all(i8x16, 4)))


in_pairs = binary(i8x16, i8x16, i8x16, _in_pairs)
"""Codes of 4 bits, two in a byte."""


def codes_of(kind: KVKind) -> Any:
    """``codes(v)``: f32x16, values divided by their scale -> i8x16, a byte for each."""
    emit = _CODES[kind.key][1]
    return unary(f32x16, i8x16, lambda b, v: b.trunc(emit(b, v), i8x16.llvm))


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
        return _plain_key(kind)
    return _scaled_key(kind)


def _put_words(kind: KVKind) -> Any:
    """``put(codes, n, address)``: the words of the first n of 16 codes of a key, 4 * KEY_GROUP bytes apart.

    A word has a quad, or with codes of 4 bits two, the second one above the first.
    """
    pairs = kind.bits == 4

    @intrinsic
    def function(typing_context: Any, codes: Any, n: Any, address: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            quads = b.bitcast(args[0], ir.VectorType(I32, 4))
            words = [b.extract_element(quads, ir.Constant(I32, i)) for i in range(4)]
            if pairs:
                four = ir.Constant(I32, 4)
                words = [b.or_(words[i], b.shl(words[i + 1], four)) for i in (0, 2)]
            values = VECTOR // len(words)
            for i, word in enumerate(words):
                with b.if_then(b.icmp_signed(">", args[1], ir.Constant(I64, i * values))):
                    b.store(word, pointer(b, offset(b, args[2], 4 * KEY_GROUP * i)), align=1)
            return context.get_dummy_value()

        return types.void(i8x16, types.int64, types.intp), generate

    return function


def _scaled_key(kind: KVKind) -> Any:
    scale, codes, block, put_words = _block_scale(kind), codes_of(kind), kind.block, _put_words(kind)
    word = 8 if kind.bits == 4 else 4  # values of a position in a line of words

    @inline
    def put(x, n, group, lane):  # type: ignore[no-untyped-def]
        p = group
        for first in range(0, n, block):
            here = min(block, n - first)
            d, inverse = scale(x + 4 * first, here)
            for i in range(0, here, VECTOR):
                v = load_first(x + 4 * (first + i), here - i) * splat(inverse)
                put_words(codes(v), here - i, p + 4 * lane + i // word * 4 * KEY_GROUP)
            p += (here + word - 1) // word * 4 * KEY_GROUP
            store_f16(p + SCALE_BYTES * lane, d)
            p += SCALE_BYTES * KEY_GROUP

    return put


def _plain_key(kind: KVKind) -> Any:
    size = kind.bits // 8
    put_numbers = _put_plain(kind, KEY_GROUP * size)

    @inline
    def put(x, n, group, lane):  # type: ignore[no-untyped-def]
        for i in range(0, n, VECTOR):
            put_numbers(load_first(x + 4 * i, n - i), n - i, group + (i * KEY_GROUP + lane) * size)

    return put


def put_value_of(kind: KVKind) -> Callable[..., Any]:
    """``put(x, n, block, lane)``: the n values at x become number ``lane`` of the values of a key block."""
    if not kind.block:
        return _plain_value(kind)
    return _scaled_value(kind)


def _plain_value(kind: KVKind) -> Any:
    size = kind.bits // 8
    numbers = i32x16 if size == 4 else i16x16
    as_kept, store = unary(f32x16, numbers, _PLAIN[kind.key]), storer(numbers)

    @inline
    def put(x, n, block, lane):  # type: ignore[no-untyped-def]
        row = block + lane * ((n + VECTOR - 1) // VECTOR * VECTOR) * size
        for i in range(0, n, VECTOR):
            store(row + i * size, as_kept(load_first(x + 4 * i, n - i)))

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
    """``put(x, n, inverse, out)``: the codes of n values at x, which are one block of a row, padded to 16 bytes."""
    codes, halves = codes_of(kind), kind.bits == 4

    @inline
    def bytes_each(x, n, inverse, out):  # type: ignore[no-untyped-def]
        for i in range(0, n, VECTOR):
            store_i8x16(out + i, codes(load_first(x + 4 * i, n - i) * splat(inverse)))

    @inline
    def pairs(x, n, inverse, out):  # type: ignore[no-untyped-def]
        for i in range(0, n, 2 * VECTOR):
            low = codes(load_first(x + 4 * i, n - i) * splat(inverse))
            high = codes(load_first(x + 4 * (i + VECTOR), n - i - VECTOR) * splat(inverse))
            store_i8x16(out + i // 2, in_pairs(low, high))

    return pairs if halves else bytes_each
