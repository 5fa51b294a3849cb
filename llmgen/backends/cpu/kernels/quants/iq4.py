"""IQ4_NL and IQ4_XS: four bits choose one of 16 values, which lie closer together near zero.

Layouts and values (ggml-common.h and ggml-quants.c of ggml):

    IQ4_NL  of 32: d f16, 16 bytes of nibbles: byte j holds weight j below and j + 16 above
    IQ4_XS  of 256: d f16, upper bit pairs of the scales (16 bits), 4 bytes of their low nibbles, then for
            each 32 weights nibbles as above

    IQ4_NL: w = d v; IQ4_XS: w = d (sc - 32) v, a scale for 32 weights
"""

from __future__ import annotations

from llvmlite import ir

from llmgen.backends.cpu.kernels import half
from llmgen.backends.cpu.kernels.abi import inline
from llmgen.backends.cpu.kernels.quants.lanes import i16_rows, nibble_codes
from llmgen.backends.cpu.kernels.quants.pairs import nibble_values64
from llmgen.backends.cpu.kernels.quants.scaled import scaled
from llmgen.backends.cpu.kernels.quants.vectors import fields, lookup, nibbles32, splat_to
from llmgen.backends.cpu.kernels.simd import Vec, constant, i32x16, load_f16, splat, to_float

VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)

values = lookup(VALUES)
splat2 = splat_to(Vec("f32", 2))


@inline
def _nl_weights(p, j):  # type: ignore[no-untyped-def]
    return values(nibbles32(p + 2))


@inline
def _nl_scales(p):  # type: ignore[no-untyped-def]
    return splat2(load_f16(p))


IQ4_NL = scaled(
    "iq4_nl",
    _nl_weights,
    _nl_scales,
    dot=nibble_codes(2, VALUES, i16_rows, ir.IntType(16), half.extend, bits=8),
)

scale_low = fields([0] * 16, [4 * (k // 2) for k in range(16)], bits=4)
# From a byte further: the compiler would make one load of the word at the block and of its first half, d, and move
# that from register to register.
scale_high = fields([0] * 16, [8 + 2 * (k // 2) for k in range(16)], bits=2, to=4)
thirty_twos = constant(i32x16, [32] * 16)


@inline
def _xs_weights(p, j):  # type: ignore[no-untyped-def]
    return values(nibbles32(p + 8 + 16 * j))


@inline
def _xs_scales(p):  # type: ignore[no-untyped-def]
    packed = scale_low(p + 4) + scale_high(p + 1) - thirty_twos()
    return to_float(packed) * splat(load_f16(p))


two_values = nibble_values64(16, VALUES)


@inline
def _xs_pairs(p, i):  # type: ignore[no-untyped-def]
    return two_values(p + 8 + 32 * i)


IQ4_XS = scaled("iq4_xs", _xs_weights, _xs_scales, pairs=_xs_pairs)
