"""IQ3_XXS and IQ3_S: four weights at a time are a vector of a codebook, with a sign for each.

Layouts (ggml-common.h and ggml-quants.c of ggml), superblocks of 256 with d f16 first:

    IQ3_XXS  64 indices of 8 bits; for 32 weights a word of four times 7 signs and a 4-bit scale
    IQ3_S    64 bytes of indices, 8 with their ninth bits, 32 of signs, 4 with scales of 4 bits for 32 weights

    IQ3_XXS: w = d (2 sc + 1) / 4 times the number, IQ3_S: w = d (2 sc + 1) times the number; and the sign
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from llmgen.backends.cpu.kernels.abi import inline
from llmgen.backends.cpu.kernels.quants import grids
from llmgen.backends.cpu.kernels.quants.iq2 import even_signs, spread_sevens
from llmgen.backends.cpu.kernels.quants.pairs import (
    GATHERS,
    LOOKS_UP_64,
    bits_above,
    even_signs64,
    looked_up,
    sixteen_bytes,
    spread_sevens64,
    with_signs64,
)
from llmgen.backends.cpu.kernels.quants.scaled import scaled
from llmgen.backends.cpu.kernels.quants.vectors import (
    eight_fours,
    fields,
    load_u16,
    numbers,
    odd_numbers,
    with_signs,
)
from llmgen.backends.cpu.kernels.simd import (
    I32,
    Vec,
    binary,
    load_f16,
    load_i64,
    load_u8,
    load_u32,
    pointer,
    splat,
    splat_value,
    unary,
)

XXS_ZERO, S_ZERO = 62, 15
"""The largest numbers of the codebooks: with them added, weights are unsigned and have seven bits, or five."""
_xxs_signed, _xxs_signed64 = with_signs(XXS_ZERO), with_signs64(XXS_ZERO)
_s_signed, _s_signed64 = with_signs(S_ZERO), with_signs64(S_ZERO)

_xxs = numbers(32, grids.as_words(grids.IQ3_XXS.vectors(), XXS_ZERO))
_xxs_fields = fields([k // 2 for k in range(16)], [28] * 16, bits=4)


@inline
def _xxs_weights(p, j):  # type: ignore[no-untyped-def]
    q = p + 2 + 8 * j
    low = _xxs(load_u8(q)), _xxs(load_u8(q + 1)), _xxs(load_u8(q + 2)), _xxs(load_u8(q + 3))
    high = _xxs(load_u8(q + 4)), _xxs(load_u8(q + 5)), _xxs(load_u8(q + 6)), _xxs(load_u8(q + 7))
    return _xxs_signed(eight_fours(low + high), even_signs(spread_sevens(load_u32(p + 66 + 4 * j))))


@inline
def _xxs_scales(p):  # type: ignore[no-untyped-def]
    return odd_numbers(_xxs_fields(p + 66)) * splat(load_f16(p) * np.float32(0.25))


_xxs64 = looked_up(32, grids.as_words(grids.IQ3_XXS.vectors(), XXS_ZERO))


@inline
def _xxs_pairs(p, i):  # type: ignore[no-untyped-def]
    signs = even_signs64(spread_sevens64(load_i64(p + 66 + 8 * i)))
    return _xxs_signed64(_xxs64(sixteen_bytes(p + 2 + 16 * i)), signs)


IQ3_XXS = scaled(
    "iq3_xxs", _xxs_weights, _xxs_scales, zero=XXS_ZERO, pairs=_xxs_pairs if LOOKS_UP_64 else None
)

_s = numbers(32, grids.as_words(grids.IQ3_S.vectors(), S_ZERO))
_s_fields = fields([0] * 16, [4 * (k // 2) for k in range(16)], bits=4)


def _eight_of_nine(b: Any, p: Any, high: Any) -> Any:
    """Eight bytes at p, and above each a bit of ``high``: eight indices of 16 bits, four to a lane."""
    shorts = ir.VectorType(ir.IntType(16), 8)
    low = b.zext(b.load(pointer(b, p), align=1, typ=ir.VectorType(ir.IntType(8), 8)), shorts)
    bits = ir.Constant(shorts, [1 << k for k in range(8)])
    is_set = b.icmp_unsigned("==", b.and_(splat_value(b, b.trunc(high, ir.IntType(16)), shorts), bits), bits)
    ninth = b.select(is_set, ir.Constant(shorts, [256] * 8), ir.Constant(shorts, [0] * 8))
    return b.bitcast(b.or_(low, ninth), i64x2.llvm)


i64x2 = Vec("i64", 2)
_indices = binary(types.intp, types.int64, i64x2, _eight_of_nine)
_first_four = unary(i64x2, types.int64, lambda b, v: b.extract_element(v, ir.Constant(I32, 0)))
_last_four = unary(i64x2, types.int64, lambda b, v: b.extract_element(v, ir.Constant(I32, 1)))


@inline
def _four(i):  # type: ignore[no-untyped-def]
    """The vectors of four indices of 16 bits."""
    return _s(i & 0xFFFF), _s(i >> 16 & 0xFFFF), _s(i >> 32 & 0xFFFF), _s(i >> 48 & 0xFFFF)


@inline
def _s_weights(p, j):  # type: ignore[no-untyped-def]
    indices = _indices(p + 2 + 8 * j, load_u8(p + 66 + j))
    vectors = _four(_first_four(indices)) + _four(_last_four(indices))
    return _s_signed(eight_fours(vectors), load_u32(p + 74 + 4 * j))


@inline
def _s_scales(p):  # type: ignore[no-untyped-def]
    return odd_numbers(_s_fields(p + 106)) * splat(load_f16(p))


_s64 = looked_up(32, grids.as_words(grids.IQ3_S.vectors(), S_ZERO))


@inline
def _s_pairs(p, i):  # type: ignore[no-untyped-def]
    indices = bits_above(sixteen_bytes(p + 2 + 16 * i), load_u16(p + 66 + 2 * i))
    return _s_signed64(_s64(indices), load_i64(p + 74 + 8 * i))


# Not LOOKS_UP_64: without gathers ``_s_weights``, which makes eight indices of nine bits at once, is faster.
IQ3_S = scaled("iq3_s", _s_weights, _s_scales, zero=S_ZERO, pairs=_s_pairs if GATHERS else None)
