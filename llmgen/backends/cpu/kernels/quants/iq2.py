"""IQ2_XXS, IQ2_XS and IQ2_S: eight weights at a time are a vector of a codebook, with a sign for each.

Layouts (ggml-common.h and ggml-quants.c of ggml), superblocks of 256 with d f16 first:

    IQ2_XXS  for 32 weights: four indices of 8 bits, then a word of four times 7 signs and a 4-bit scale
    IQ2_XS   32 times 16 bits: an index of 9 bits and 7 signs; then for 32 weights two scales of 4 bits
    IQ2_S    32 bytes of indices, 32 of signs, 8 with their upper bit pairs; then scales as in IQ2_XS

    w = d (2 sc + 1) / 8 times the number, and the sign

Of eight signs seven are stored, and the number of negative ones is even; IQ2_S stores all.
"""

from __future__ import annotations

import numpy as np

from llmgen.backends.cpu.kernels.abi import inline
from llmgen.backends.cpu.kernels.quants import grids
from llmgen.backends.cpu.kernels.quants.pairs import (
    GATHERS,
    LOOKS_UP_64,
    bytes_of,
    eight_bytes,
    even_signs64,
    looked_up,
    nine_and_seven,
    pairs_above,
    spread_sevens64,
    with_signs64,
)
from llmgen.backends.cpu.kernels.quants.scaled import scaled
from llmgen.backends.cpu.kernels.quants.vectors import (
    fields,
    four_eights,
    load_u16,
    numbers,
    odd_numbers,
    with_signs,
)
from llmgen.backends.cpu.kernels.simd import load_f16, load_i64, load_u8, load_u32, splat

ZERO = 43
"""The largest number of the codebooks: with it added, weights are unsigned and have seven bits."""
signed, signed64 = with_signs(ZERO), with_signs64(ZERO)


@inline
def even_signs(sevens):  # type: ignore[no-untyped-def]
    """Seven signs in each of four bytes -> eight, of which an even number is set."""
    parity = sevens ^ (sevens >> 4)
    parity = parity ^ (parity >> 2)
    parity = parity ^ (parity >> 1)
    return sevens | ((parity & 0x01010101) << 7)


@inline
def spread_sevens(word):  # type: ignore[no-untyped-def]
    """Four times seven bits -> four bytes."""
    return (word & 127) | ((word & 0x3F80) << 1) | ((word & 0x1FC000) << 2) | ((word & 0xFE00000) << 3)


@inline
def eighth(p):  # type: ignore[no-untyped-def]
    """The half at p over eight, in all lanes: exact."""
    return splat(load_f16(p) * np.float32(0.125))


# ---- IQ2_XXS -------------------------------------------------------------------------------

_xxs = numbers(64, grids.as_words(grids.IQ2_XXS.vectors(), ZERO))
_xxs_fields = fields([2 * (k // 2) + 1 for k in range(16)], [28] * 16, bits=4)


@inline
def _xxs_weights(p, j):  # type: ignore[no-untyped-def]
    q = p + 2 + 8 * j
    v = four_eights((_xxs(load_u8(q)), _xxs(load_u8(q + 1)), _xxs(load_u8(q + 2)), _xxs(load_u8(q + 3))))
    return signed(v, even_signs(spread_sevens(load_u32(q + 4))))


@inline
def _xxs_scales(p):  # type: ignore[no-untyped-def]
    return odd_numbers(_xxs_fields(p + 2)) * eighth(p)


_xxs64 = looked_up(64, grids.as_words(grids.IQ2_XXS.vectors(), ZERO))


# Indices are whole bytes here, so single look-ups read them from the block directly.
@inline
def _xxs_pairs(p, i):  # type: ignore[no-untyped-def]
    q = p + 2 + 16 * i
    indices, words = load_u32(q) | load_u32(q + 8) << 32, load_u32(q + 4) | load_u32(q + 12) << 32
    return signed64(_xxs64(bytes_of(indices)), even_signs64(spread_sevens64(words)))


IQ2_XXS = scaled("iq2_xxs", _xxs_weights, _xxs_scales, zero=ZERO, pairs=_xxs_pairs if GATHERS else None)

# ---- IQ2_XS --------------------------------------------------------------------------------

_xs = numbers(64, grids.as_words(grids.IQ2_XS.vectors(), ZERO))
_nibbles = fields([k // 8 for k in range(16)], [4 * (k % 8) for k in range(16)], bits=4)


@inline
def _xs_weights(p, j):  # type: ignore[no-untyped-def]
    q = load_i64(p + 2 + 8 * j)
    v = four_eights((_xs(q & 511), _xs((q >> 16) & 511), _xs((q >> 32) & 511), _xs((q >> 48) & 511)))
    sevens = ((q >> 9) & 127) | ((q >> 17) & 0x7F00) | ((q >> 25) & 0x7F0000) | ((q >> 33) & 0x7F000000)
    return signed(v, even_signs(sevens))


@inline
def _xs_scales(p):  # type: ignore[no-untyped-def]
    return odd_numbers(_nibbles(p + 66)) * eighth(p)


_xs64 = looked_up(64, grids.as_words(grids.IQ2_XS.vectors(), ZERO))


@inline
def _xs_pairs(p, i):  # type: ignore[no-untyped-def]
    indices, sevens = nine_and_seven(p + 2 + 16 * i)
    return signed64(_xs64(indices), even_signs64(sevens))


IQ2_XS = scaled("iq2_xs", _xs_weights, _xs_scales, zero=ZERO, pairs=_xs_pairs if LOOKS_UP_64 else None)

# ---- IQ2_S ---------------------------------------------------------------------------------

_s = numbers(64, grids.as_words(grids.IQ2_S.vectors(), ZERO))


@inline
def _s_weights(p, j):  # type: ignore[no-untyped-def]
    q, high = p + 2 + 4 * j, load_u8(p + 66 + j)
    first, second = load_u8(q) | (high & 3) << 8, load_u8(q + 1) | (high >> 2 & 3) << 8
    third, fourth = load_u8(q + 2) | (high >> 4 & 3) << 8, load_u8(q + 3) | (high >> 6) << 8
    v = four_eights((_s(first), _s(second), _s(third), _s(fourth)))
    return signed(v, load_u32(p + 34 + 4 * j))


@inline
def _s_scales(p):  # type: ignore[no-untyped-def]
    return odd_numbers(_nibbles(p + 74)) * eighth(p)


_s64 = looked_up(64, grids.as_words(grids.IQ2_S.vectors(), ZERO))


@inline
def _s_pairs(p, i):  # type: ignore[no-untyped-def]
    indices = pairs_above(eight_bytes(p + 2 + 8 * i), load_u16(p + 66 + 2 * i))
    return signed64(_s64(indices), load_i64(p + 34 + 8 * i))


IQ2_S = scaled("iq2_s", _s_weights, _s_scales, zero=ZERO, pairs=_s_pairs if LOOKS_UP_64 else None)
