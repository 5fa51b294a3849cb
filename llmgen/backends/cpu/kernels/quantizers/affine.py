"""Quantizers for types with scales and mins: Q2_K, Q4_K, Q5_K.

A group of weights x becomes q from 0 to ``most`` with w = d sc q - dmin m; d and dmin are
shared by a superblock of 256, and sc and m are small whole numbers.  The error that is made
small is the plain sum of (w - x)^2:

1. Each group for itself: for several widths of a step, round, then solve for the best scale
   and min (least squares), round again, and keep the best.
2. d and dmin follow from the largest scale and min.  Each group tries the whole numbers around
   its own scale and min, and rounds its weights anew for each pair.
3. With sc, q and m known, the best d and dmin are a 2 x 2 system.  Step 2 is repeated with
   them, and the better of both is kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.core import types

from llmgen.backends.cpu.kernels.abi import I, inline, native
from llmgen.backends.cpu.kernels.quantizers import packing
from llmgen.backends.cpu.kernels.quantizers.groups import (
    GROUPS,
    LARGEST_HALF,
    as_half,
    clamped,
    each,
    factor_for,
    inverse,
    rounded,
)
from llmgen.backends.cpu.kernels.simd import (
    at_least,
    at_most,
    load_f32,
    nearest,
    splat,
    store_f16,
    store_f32,
    zero_f32x16,
)

_ZERO = np.float32(0.0)
_SCALES, _MINS, _CODES = 0, 64, 1024
"""Where in the scratch memory the fitted scales and mins are, and then a byte for each weight."""
_CHOICES, _ROUND = 128, 256
"""Where the whole numbers of a first and a second choice are: scales, then mins."""


def _affine(
    size: int, most: int, most_scale: int, widths: tuple[float, ...], block_bytes: int, pack: Any
) -> Any:
    """The kernel for groups of ``size`` weights, numbers up to ``most``, scales and mins up to ``most_scale``.

    ``widths``: how many steps are tried between the smallest and the largest weight.
    """
    group = GROUPS[size]
    load, dot, total, error = group.load, group.dot, group.total, group.error
    largest, smallest, store = group.largest, group.smallest, group.store
    n_groups, n, highest = 256 // size, np.float32(size), np.float32(most)
    highest_scale = np.float32(most_scale)

    @inline
    def nearest_number(v, less, by):  # type: ignore[no-untyped-def]
        q = nearest((v + splat(less)) * splat(by))
        return at_most(at_least(q, zero_f32x16()), splat(highest))

    numbers = each(group, nearest_number)

    @inline
    def solved(x, q, sum_x):  # type: ignore[no-untyped-def]
        """(scale, min) with the least error for these numbers; the min is not negative."""
        sum_q, sum_qq, sum_qx = total(q), dot(q, q), dot(q, x)
        determinant = n * sum_qq - sum_q * sum_q
        if determinant > _ZERO:
            scale = (n * sum_qx - sum_x * sum_q) / determinant
            less = (scale * sum_q - sum_x) / n
            if less > _ZERO and scale > _ZERO:
                return scale, less
        return max(sum_qx * inverse(sum_qq), _ZERO), _ZERO

    @inline
    def fitted(x):  # type: ignore[no-untyped-def]
        """(scale, min) of a group for itself."""
        less = max(-smallest(x), _ZERO)
        span = largest(x) + less
        if not span > _ZERO:
            return _ZERO, less
        sum_x = total(x)
        scale, start = span / highest, less
        best = error(x, numbers(x, less, highest / span), scale, less)
        for width in widths:
            s, m = solved(x, numbers(x, start, np.float32(width) / span), sum_x)
            q = numbers(x, m, inverse(s))
            s, m = solved(x, q, sum_x)
            e = error(x, numbers(x, m, inverse(s)), s, m)
            if e < best:
                best, scale, less = e, s, m
        return scale, less

    @inline
    def choose(x, scale, less, d, dmin, at):  # type: ignore[no-untyped-def]
        """Store the whole numbers of a group's scale and min that give the least error; returns that."""
        near_scale, near_min = rounded(scale * inverse(d)), rounded(less * inverse(dmin))
        best = np.float32(np.inf)
        for i in range(-1, 2):
            sc = clamped(near_scale + np.float32(i), _ZERO, highest_scale)
            s = d * sc
            for j in range(-1, 2):
                m = clamped(near_min + np.float32(j), _ZERO, highest_scale)
                e = error(x, numbers(x, dmin * m, inverse(s)), s, dmin * m)
                if e < best:
                    best = e
                    store_f32(at, sc)
                    store_f32(at + 64, m)
        return best

    @inline
    def choose_all(p, scratch, choice, d, dmin):  # type: ignore[no-untyped-def]
        """The same for all groups; returns the error of the superblock."""
        sum_error = _ZERO
        for g in range(n_groups):
            s, m = load_f32(scratch + _SCALES + 4 * g), load_f32(scratch + _MINS + 4 * g)
            sum_error += choose(load(p + 4 * size * g), s, m, d, dmin, choice + 4 * g)
        return sum_error

    @inline
    def best_factors(p, choice, d, dmin):  # type: ignore[no-untyped-def]
        """(d, dmin) with the least error for the numbers that are chosen."""
        aa = ab = bb = ax = bx = _ZERO
        for g in range(n_groups):
            x = load(p + 4 * size * g)
            sc, m = load_f32(choice + 4 * g), load_f32(choice + 64 + 4 * g)
            q = numbers(x, dmin * m, inverse(d * sc))
            sum_q = total(q)
            aa += sc * sc * dot(q, q)
            ab += sc * m * sum_q
            bb += m * m * n
            ax += sc * dot(q, x)
            bx += m * total(x)
        determinant = aa * bb - ab * ab
        if determinant > _ZERO:
            return (bb * ax - ab * bx) / determinant, (ab * ax - aa * bx) / determinant
        return ax * inverse(aa), dmin

    @inline
    def write(p, scratch, choice, d, dmin, o):  # type: ignore[no-untyped-def]
        for g in range(n_groups):
            sc, m = load_f32(choice + 4 * g), load_f32(choice + 64 + 4 * g)
            q = numbers(load(p + 4 * size * g), dmin * m, inverse(d * sc))
            store(scratch + _CODES + size * g, q)
        pack(scratch + _CODES, choice, choice + 64, d, dmin, o)

    @native(types.void(I, I, I, I))
    def quantize(weights: int, n_blocks: int, out: int, scratch: int) -> None:
        for block in range(n_blocks):
            p, o = weights + 1024 * block, out + block_bytes * block
            top_scale = top_min = _ZERO
            for g in range(n_groups):
                s, m = fitted(load(p + 4 * size * g))
                store_f32(scratch + _SCALES + 4 * g, s)
                store_f32(scratch + _MINS + 4 * g, m)
                top_scale, top_min = max(top_scale, s), max(top_min, m)
            d = factor_for(top_scale / highest_scale, scratch + _CODES)
            dmin = factor_for(top_min / highest_scale, scratch + _CODES)
            first, second = scratch + _CHOICES, scratch + _CHOICES + _ROUND
            before = choose_all(p, scratch, first, d, dmin)
            d2, dmin2 = best_factors(p, first, d, dmin)
            d2, dmin2 = as_half(d2, scratch + _CODES), as_half(dmin2, scratch + _CODES)
            after = np.float32(np.inf)
            if d2 > _ZERO and dmin2 >= _ZERO:
                after = choose_all(p, scratch, second, d2, dmin2)
            if after < before and max(d, dmin) <= LARGEST_HALF:  # infinite factors stay, to be seen
                write(p, scratch, second, d2, dmin2, o)
            else:
                write(p, scratch, first, d, dmin, o)

    return quantize


@inline
def _pack_q2_k(q, scales, mins, d, dmin, o):  # type: ignore[no-untyped-def]
    packing.pairs_of_nibbles(scales, mins, 16, o)
    packing.two_bits(q, o + 16, 0)
    store_f16(o + 80, d)
    store_f16(o + 82, dmin)


@inline
def _pack_q4_k(q, scales, mins, d, dmin, o):  # type: ignore[no-untyped-def]
    store_f16(o, d)
    store_f16(o + 2, dmin)
    packing.packed_6_bits(scales, mins, o + 4)
    packing.pairs_of_blocks(q, o + 16)


@inline
def _pack_q5_k(q, scales, mins, d, dmin, o):  # type: ignore[no-untyped-def]
    store_f16(o, d)
    store_f16(o + 2, dmin)
    packing.packed_6_bits(scales, mins, o + 4)
    packing.one_bit(q, o + 16, 4)
    packing.pairs_of_blocks(q, o + 48)


def _widths(most: int, low: float, high: float, count: int) -> tuple[float, ...]:
    return tuple(np.linspace(most + low, most + high, count).tolist())


q2_k = _affine(16, 3, 15, _widths(3, -1.0, 1.0, 9), 84, _pack_q2_k)
q4_k = _affine(32, 15, 63, _widths(15, -3.0, 1.5, 10), 144, _pack_q4_k)
q5_k = _affine(32, 31, 63, _widths(31, -2.0, 1.5, 8), 176, _pack_q5_k)
