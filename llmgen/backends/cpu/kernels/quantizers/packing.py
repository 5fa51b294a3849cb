"""From whole numbers to the bytes of a block, as ggml-common.h of ggml lays them out.

``q``: the address of a byte for each weight; ``o``: where the bits go; ``scales``, ``mins``:
addresses of float32 with the whole number of each group.
"""

from __future__ import annotations

from llmgen.backends.cpu.kernels.abi import inline
from llmgen.backends.cpu.kernels.quantizers.groups import store_i8x16, store_u8
from llmgen.backends.cpu.kernels.quants.vectors import masked, shift_right
from llmgen.backends.cpu.kernels.simd import (
    i8x16,
    load_f32,
    load_i8x16,
    load_i8x32,
    shift,
    store_i8x32,
)

_low4, _low4_up = masked(15), masked(15, 4)
_low2 = [masked(3, 2 * i) for i in range(4)]
_low2_0, _low2_1, _low2_2, _low2_3 = _low2
_bit0 = masked(1)
_up4 = shift(i8x16, "shl", [4] * 16)


@inline
def number(p, i):  # type: ignore[no-untyped-def]
    """The i-th of float32 whole numbers at p."""
    return int(load_f32(p + 4 * i))


@inline
def pairs_of_blocks(q, o):  # type: ignore[no-untyped-def]
    """256 numbers: the low nibbles of a byte from one block of 32, the high ones from the next."""
    for j in range(4):
        low, high = load_i8x32(q + 64 * j), load_i8x32(q + 64 * j + 32)
        store_i8x32(o + 32 * j, _low4(low) | _low4_up(high))


@inline
def one_bit(q, o, down):  # type: ignore[no-untyped-def]
    """256 numbers: bit ``down`` of those of block j of 32 becomes bit j of 32 bytes."""
    bits = _bit0(shift_right(load_i8x32(q), down))
    for j in range(1, 8):
        bit = _bit0(shift_right(load_i8x32(q + 32 * j), down))
        for _ in range(j):
            bit = bit + bit
        bits = bits | bit
    store_i8x32(o, bits)


@inline
def _four(q, o, down):  # type: ignore[no-untyped-def]
    """Two bits from each of four blocks of 32, after a shift to the right by ``down``."""
    a, b = shift_right(load_i8x32(q), down), shift_right(load_i8x32(q + 32), down)
    c, d = shift_right(load_i8x32(q + 64), down), shift_right(load_i8x32(q + 96), down)
    store_i8x32(o, _low2_0(a) | _low2_1(b) | _low2_2(c) | _low2_3(d))


@inline
def two_bits(q, o, down):  # type: ignore[no-untyped-def]
    """256 numbers: two bits of each, four blocks of 32 in a byte."""
    _four(q, o, down)
    _four(q + 128, o + 32, down)


@inline
def six_bits(q, low, high):  # type: ignore[no-untyped-def]
    """256 numbers: 128 bytes of low nibbles, 64 of upper pairs of bits, as in Q6_K."""
    for half in range(2):
        p = q + 128 * half
        for j in range(2):
            first, second = load_i8x32(p + 32 * j), load_i8x32(p + 32 * j + 64)
            store_i8x32(low + 64 * half + 32 * j, _low4(first) | _low4_up(second))
    two_bits(q, high, 4)


@inline
def nibbles(q, o):  # type: ignore[no-untyped-def]
    """32 numbers: the low nibbles of 16 bytes from the first half, the high ones from the second."""
    store_i8x16(o, load_i8x16(q) | _up4(load_i8x16(q + 16)))


@inline
def packed_6_bits(scales, mins, o):  # type: ignore[no-untyped-def]
    """Eight scales and eight mins of 6 bits in 12 bytes, as in Q4_K and Q5_K."""
    for j in range(4):
        sc, m = number(scales, j + 4), number(mins, j + 4)
        store_u8(o + j, number(scales, j) | (sc >> 4) << 6)
        store_u8(o + j + 4, number(mins, j) | (m >> 4) << 6)
        store_u8(o + j + 8, (sc & 15) | (m & 15) << 4)


@inline
def packed_16_scales(scales, o):  # type: ignore[no-untyped-def]
    """Sixteen scales from -32 to 31 in 12 bytes, as in Q3_K."""
    for j in range(8):
        store_u8(o + j, ((number(scales, j) + 32) & 15) | ((number(scales, j + 8) + 32) & 15) << 4)
    for j in range(4):
        upper = 0
        for k in range(4):
            upper |= ((number(scales, j + 4 * k) + 32) >> 4) << 2 * k
        store_u8(o + 8 + j, upper)


@inline
def split_6_bits(scales, high, low):  # type: ignore[no-untyped-def]
    """Eight scales from -32 to 31: upper bits in two bytes, low nibbles in four, as in IQ4_XS."""
    for half in range(2):
        upper = 0
        for k in range(4):
            upper |= ((number(scales, 4 * half + k) + 32) >> 4) << 2 * k
        store_u8(high + half, upper)
    for j in range(4):
        first, second = number(scales, 2 * j) + 32, number(scales, 2 * j + 1) + 32
        store_u8(low + j, (first & 15) | (second & 15) << 4)


@inline
def bytes_of(numbers, n, o):  # type: ignore[no-untyped-def]
    """n whole numbers as a byte each."""
    for j in range(n):
        store_u8(o + j, number(numbers, j))


@inline
def pairs_of_nibbles(first, second, n, o):  # type: ignore[no-untyped-def]
    """n bytes, of which ``first`` gives the low nibbles and ``second`` the high ones."""
    for j in range(n):
        store_u8(o + j, number(first, j) | number(second, j) << 4)
