"""IQ1_S and IQ1_M: eight weights at a time are a vector of -1, 0 and 1, all moved by an eighth up or down.

Layouts (ggml-common.h and ggml-quants.c of ggml), superblocks of 256:

    IQ1_S  d f16, 32 bytes of indices; for 32 weights 16 bits: four times the 3 upper bits of an index, a
           3-bit scale, the direction (set: down)
    IQ1_M  32 bytes of indices; for each two of them a byte with the 3 upper bits and the direction of one
           below, of the other above; four times 16 bits: four 3-bit scales, each for 16 weights, and above
           them four bits of d, which is f16

    w = d (2 sc + 1) (number +- 1/8)

The kernels take eighths: w = d (2 sc + 1) / 8 times (8 number +- 1), a whole number from -9 to 9.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from llmgen.backends.cpu.kernels import half
from llmgen.backends.cpu.kernels.abi import inline
from llmgen.backends.cpu.kernels.quants import grids
from llmgen.backends.cpu.kernels.quants.pairs import LOOKS_UP_64, above, eight_bytes, i32x8, looked_up
from llmgen.backends.cpu.kernels.quants.scaled import scaled
from llmgen.backends.cpu.kernels.quants.vectors import (
    fields,
    four_eights,
    load_u16,
    numbers,
    odd_numbers,
)
from llmgen.backends.cpu.kernels.simd import (
    binary,
    i8x64,
    i64x8,
    load_f16,
    load_i64,
    load_u8,
    load_u32,
    splat,
    splat_value,
    unary,
)

ZERO = 9
_EACH = 0x0101010101010101

# less one for the direction down: two are added for the other
_words = grids.as_words([tuple(8 * v + ZERO - 1 for v in vector) for vector in grids.IQ1.vectors()])
_vectors, _vectors64 = numbers(64, _words), looked_up(64, _words)


@inline
def _moved(index, down):  # type: ignore[no-untyped-def]
    """The vector of an index, moved; down: 1 or 0."""
    return _vectors(index) + (1 - down) * (2 * _EACH)


def _moved64(directions: Sequence[int]) -> Any:
    """``f(v, word)``: each eight bytes moved, by the bit of the word that tells their direction."""

    def emit(b: Any, v: Any, word: Any) -> Any:
        kind = i64x8.llvm
        bits = b.and_(splat_value(b, word, kind), ir.Constant(kind, [1 << at for at in directions]))
        lanes = b.bitcast(v, kind)
        is_up = b.icmp_unsigned("==", bits, ir.Constant(kind, [0] * 8))
        moved = b.select(is_up, b.add(lanes, ir.Constant(kind, [2 * _EACH] * 8)), lanes)
        return b.bitcast(moved, i8x64.llvm)

    return binary(i8x64, types.int64, i8x64, emit)


# ---- IQ1_S ---------------------------------------------------------------------------------

_s_fields = fields([k // 4 for k in range(16)], [12 + 16 * (k // 2 % 2) for k in range(16)], bits=3)


@inline
def _s_weights(p, j):  # type: ignore[no-untyped-def]
    q, high = p + 2 + 4 * j, load_u16(p + 34 + 2 * j)
    down = high >> 15
    first = _moved(load_u8(q) | (high & 7) << 8, down)
    second = _moved(load_u8(q + 1) | (high >> 3 & 7) << 8, down)
    third = _moved(load_u8(q + 2) | (high >> 6 & 7) << 8, down)
    return four_eights((first, second, third, _moved(load_u8(q + 3) | (high >> 9 & 7) << 8, down)))


@inline
def _s_scales(p):  # type: ignore[no-untyped-def]
    return odd_numbers(_s_fields(p + 34)) * splat(load_f16(p) * np.float32(0.125))


_s_above, _s_moved64 = above(i32x8, 3, [0, 3, 6, 9, 16, 19, 22, 25]), _moved64([15] * 4 + [31] * 4)


@inline
def _s_pairs(p, i):  # type: ignore[no-untyped-def]
    high = load_u32(p + 34 + 4 * i)
    return _s_moved64(_vectors64(_s_above(eight_bytes(p + 2 + 8 * i), high)), high)


IQ1_S = scaled("iq1_s", _s_weights, _s_scales, zero=ZERO, pairs=_s_pairs if LOOKS_UP_64 else None)

# ---- IQ1_M ---------------------------------------------------------------------------------

_m_fields = fields([k // 8 for k in range(16)], [16 * (k // 4 % 2) + 3 * (k % 4) for k in range(16)], bits=3)


def _half(b: Any, bits: Any) -> Any:
    return half.extend(b, b.trunc(bits, ir.IntType(16)))


half_of = unary(types.int64, types.float32, _half)


@inline
def _m_weights(p, j):  # type: ignore[no-untyped-def]
    q, low, high = p + 4 * j, load_u8(p + 32 + 2 * j), load_u8(p + 33 + 2 * j)
    first = _moved(load_u8(q) | (low & 7) << 8, low >> 3 & 1)
    second = _moved(load_u8(q + 1) | (low >> 4 & 7) << 8, low >> 7)
    third = _moved(load_u8(q + 2) | (high & 7) << 8, high >> 3 & 1)
    return four_eights((first, second, third, _moved(load_u8(q + 3) | (high >> 4 & 7) << 8, high >> 7)))


@inline
def _m_scales(p):  # type: ignore[no-untyped-def]
    s = load_i64(p + 48)
    d = (s >> 12 & 0xF) | (s >> 24 & 0xF0) | (s >> 36 & 0xF00) | (s >> 48 & 0xF000)
    return odd_numbers(_m_fields(p + 48)) * splat(half_of(d) * np.float32(0.125))


_nibbles = [4 * i for i in range(8)]
_m_above, _m_moved64 = above(i32x8, 3, _nibbles), _moved64([at + 3 for at in _nibbles])


@inline
def _m_pairs(p, i):  # type: ignore[no-untyped-def]
    high = load_u32(p + 32 + 4 * i)
    return _m_moved64(_vectors64(_m_above(eight_bytes(p + 8 * i), high)), high)


IQ1_M = scaled("iq1_m", _m_weights, _m_scales, zero=ZERO, pairs=_m_pairs if LOOKS_UP_64 else None)
