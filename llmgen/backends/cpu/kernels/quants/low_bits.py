"""Q2_K and Q3_K: superblocks of 256 weights with a small scale for every 16 of them.

Layouts (ggml-common.h and ggml-quants.c of ggml):

    Q2_K  16 bytes of a 4-bit scale and above it a 4-bit offset, 64 bytes of bit pairs, d f16, dmin f16
    Q3_K  32 bytes of third bits, 64 bytes of bit pairs, 12 bytes of packed 6-bit scales, d f16

    Q2_K: w = d sc q - dmin m; Q3_K: w = d (sc - 32) (q - 4)
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from llmgen.backends.cpu.kernels.abi import inline
from llmgen.backends.cpu.kernels.quants.scaled import scaled
from llmgen.backends.cpu.kernels.quants.vectors import fields, load_u16, masked, shift_right
from llmgen.backends.cpu.kernels.simd import (
    binary,
    constant,
    i8x64,
    i32x16,
    i64x8,
    load_f16,
    load_i8x32,
    load_u8,
    repeat_i8x32,
    splat,
    splat_value,
    to_float,
)


def _halves(more: int, mask: int, left: int = 0) -> Any:
    """``f(v, n)``: 64 bytes shifted right by n, the upper 32 by ``more`` bits more, and masked.

    With ``left`` they are shifted to the left instead, by so many bits, the upper ones by ``more`` less.
    """
    kind = i64x8.llvm

    def emit(b: Any, v: Any, n: Any) -> Any:
        v = b.bitcast(v, kind)
        if left:
            shifted = b.shl(v, ir.Constant(kind, [left] * 4 + [left - more] * 4))
        else:
            shifted = b.lshr(v, b.add(splat_value(b, n, kind), ir.Constant(kind, [0] * 4 + [more] * 4)))
        return b.and_(b.bitcast(shifted, i8x64.llvm), ir.Constant(i8x64.llvm, [mask] * 64))

    return binary(i8x64, types.int64, i8x64, emit)


two_bits, third_bit = masked(3), masked(1, 2)


@inline
def bit_pairs(p, j):  # type: ignore[no-untyped-def]
    """The j-th 32 of 256 bit pairs at p: a byte holds weights that are 32 apart."""
    return two_bits(shift_right(load_i8x32(p + 32 * (j >> 2)), 2 * (j & 3)))


_every_byte = ([k // 4 for k in range(16)], [8 * (k % 4) for k in range(16)])
low_fields = fields(*_every_byte, bits=4)
high_fields = fields(_every_byte[0], [shift + 4 for shift in _every_byte[1]], bits=4)


@inline
def _q2_weights(p, j):  # type: ignore[no-untyped-def]
    return bit_pairs(p + 16, j)


@inline
def _q2_scales(p):  # type: ignore[no-untyped-def]
    return to_float(low_fields(p)) * splat(load_f16(p + 80))


@inline
def _q2_offsets(p):  # type: ignore[no-untyped-def]
    return to_float(high_fields(p)) * splat(load_f16(p + 82))


@inline
def _q2_small(p, j):  # type: ignore[no-untyped-def]
    return load_u8(p + 2 * j) & 15, load_u8(p + 2 * j + 1) & 15


@inline
def _q2_scale(p):  # type: ignore[no-untyped-def]
    return load_f16(p + 80)


Q2_K = scaled("q2_k", _q2_weights, _q2_scales, _q2_offsets, small_scales=_q2_small, scale=_q2_scale)

# the low four bits: nibbles of bytes 0..7, the low ones first; the top two: bit pairs of bytes 8..11
six_low = fields([k % 8 // 4 for k in range(16)], [8 * (k % 4) + 4 * (k // 8) for k in range(16)], bits=4)
six_high = fields([2] * 16, [8 * (k % 4) + 2 * (k // 4) for k in range(16)], bits=2)
sixteens, thirty_twos = constant(i32x16, [16] * 16), constant(i32x16, [32] * 16)


@inline
def _q3_weights(p, j):  # type: ignore[no-untyped-def]
    return bit_pairs(p + 32, j) | third_bit(shift_right(load_i8x32(p), j))


@inline
def _q3_scales(p):  # type: ignore[no-untyped-def]
    packed = six_low(p + 96) + six_high(p + 96) * sixteens() - thirty_twos()
    return to_float(packed) * splat(load_f16(p + 108))


_pair_halves, _third_halves, _first_thirds = _halves(2, 3), _halves(1, 4), _halves(1, 4, left=2)


@inline
def _q3_pairs(p, i):  # type: ignore[no-untyped-def]
    low = _pair_halves(repeat_i8x32(load_i8x32(p + 32 + 32 * (i >> 1))), 4 * (i & 1))
    thirds = repeat_i8x32(load_i8x32(p))
    if i == 0:
        return low | _first_thirds(thirds, 0)
    return low | _third_halves(thirds, 2 * i - 2)


@inline
def _q3_small(p, j):  # type: ignore[no-untyped-def]
    """32 - sc of each half, so that the product with q - 4 is -128 at least and 124 at most; sc - 32 might give 128."""
    low = load_u16(p + 96 + (2 * j & 7)) >> (j & 4)
    high = load_u16(p + 104 + (2 * j & 3)) >> (j & 6)
    return 32 - (low & 15 | (high & 3) << 4), 32 - (low >> 8 & 15 | (high >> 8 & 3) << 4)


@inline
def _q3_scale(p):  # type: ignore[no-untyped-def]
    return -load_f16(p + 108)


Q3_K = scaled(
    "q3_k", _q3_weights, _q3_scales, zero=4, pairs=_q3_pairs, small_scales=_q3_small, scale=_q3_scale
)
