"""Quantizers for types with scales alone: Q3_K, Q6_K, IQ4_NL, IQ4_XS.

A group of weights x becomes whole numbers v (or, in the IQ4 types, values of a table) with
w = d sc v; d is shared by a superblock.  The error that is made small is the plain sum of
(w - x)^2, but for Q3_K: with so few bits it pays to count (w - x)^2 (x^2 + the mean of x^2).
SmolLM2's perplexity with Q3_K in its ffn_down is 54.1 so, 59.1 with the plain sum, and 57.8 with
llama.cpp's quantizer; the plain error is 1% smaller than llama.cpp's, and 3% larger than it could be.

1. Each group for itself: let its largest weight meet several values near either end of the
   range, round the others, and solve for the scale (least squares); keep the best.
2. d follows from the largest scale.  Each group tries the whole numbers around its own scale,
   and rounds its weights anew for each.
3. With sc and v known, the best d is one division.  Step 2 is repeated with it, and the better
   of both is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from llmgen.backends.cpu.kernels.abi import I, inline, native
from llmgen.backends.cpu.kernels.quantizers import packing
from llmgen.backends.cpu.kernels.quantizers.groups import (
    GROUPS,
    LARGEST_HALF,
    Group,
    as_half,
    clamped,
    each,
    factor_for,
    inverse,
    rounded,
)
from llmgen.backends.cpu.kernels.quants.iq4 import VALUES
from llmgen.backends.cpu.kernels.simd import (
    at_least,
    at_most,
    f32x16,
    load_f32,
    nearest,
    splat,
    store_f16,
    store_f32,
    unary,
)

_ZERO = np.float32(0.0)
_SCALES, _CODES = 0, 1024
_CHOICES, _ROUND = 128, 256


def _symmetric(
    size: int,
    superblock: int,
    value: Any,
    code: Any,
    ends: tuple[float, ...],
    scales: tuple[int, int],
    block_bytes: int,
    pack: Any,
    large_first: bool = False,
) -> Any:
    """The kernel for groups of ``size`` weights, ``superblock`` of which share d.

    ``value(v)`` rounds a vector to the values that the type has, ``code(v)`` gives their
    numbers; ``ends``: what the largest weight is tried as; ``scales``: the range of sc;
    ``large_first``: errors count by their weight's square (and the mean of the group's), see above.
    """
    group = GROUPS[size]
    load, largest, smallest, store = group.load, group.largest, group.smallest, group.store
    n_groups = superblock // size
    least_scale, most_scale = np.float32(scales[0]), np.float32(scales[1])

    @inline
    def value_times(v, by, unused):  # type: ignore[no-untyped-def]
        return value(v * splat(by))

    @inline
    def code_times(v, by, unused):  # type: ignore[no-untyped-def]
        return code(v * splat(by))

    values, codes = each(group, value_times), each(group, code_times)
    counted, dot, error = _counting(group, large_first)

    @inline
    def fitted(x):  # type: ignore[no-untyped-def]
        """The scale of a group for itself, of either sign."""
        high, low = largest(x), smallest(x)
        extreme = high if high > -low else low
        scale, best = _ZERO, _ZERO
        if extreme == _ZERO:
            return scale
        w = counted(x)
        for end in ends:
            v = values(x, np.float32(end) / extreme, _ZERO)
            s = dot(w, v, x) * inverse(dot(w, v, v))
            v = values(x, inverse(s), _ZERO)
            product, square = dot(w, v, x), dot(w, v, v)
            s = product * inverse(square)
            if product * s > best:  # what the error is less than the sum of x^2
                best, scale = product * s, s
        return scale

    @inline
    def choose(x, scale, d, at):  # type: ignore[no-untyped-def]
        """Store the whole number of a group's scale that gives the least error; returns that."""
        near = rounded(scale * inverse(d))
        w, best = counted(x), np.float32(np.inf)
        for i in range(-1, 2):
            sc = clamped(near + np.float32(i), least_scale, most_scale)
            s = d * sc
            e = error(w, x, values(x, inverse(s), _ZERO), s)
            if e < best:
                best = e
                store_f32(at, sc)
        return best

    @inline
    def choose_all(p, scratch, choice, d):  # type: ignore[no-untyped-def]
        """The same for all groups; returns the error of the superblock."""
        sum_error = _ZERO
        for g in range(n_groups):
            s = load_f32(scratch + _SCALES + 4 * g)
            sum_error += choose(load(p + 4 * size * g), s, d, choice + 4 * g)
        return sum_error

    @inline
    def best_factor(p, choice, d):  # type: ignore[no-untyped-def]
        """The d with the least error for the numbers that are chosen."""
        product = square = _ZERO
        for g in range(n_groups):
            x, sc = load(p + 4 * size * g), load_f32(choice + 4 * g)
            w, v = counted(x), values(x, inverse(d * sc), _ZERO)
            product += sc * dot(w, v, x)
            square += sc * sc * dot(w, v, v)
        return product * inverse(square)

    @inline
    def write(p, scratch, choice, d, o):  # type: ignore[no-untyped-def]
        for g in range(n_groups):
            s = d * load_f32(choice + 4 * g)
            store(scratch + _CODES + size * g, codes(load(p + 4 * size * g), inverse(s), _ZERO))
        pack(scratch + _CODES, choice, d, o)

    @native(types.void(I, I, I, I))
    def quantize(weights: int, n_blocks: int, out: int, scratch: int) -> None:
        for block in range(n_blocks):
            p, o = weights + 4 * superblock * block, out + block_bytes * block
            top = _ZERO
            for g in range(n_groups):
                s = fitted(load(p + 4 * size * g))
                store_f32(scratch + _SCALES + 4 * g, s)
                top = s if abs(s) > abs(top) else top
            d = factor_for(top / least_scale, scratch + _CODES)
            first, second = scratch + _CHOICES, scratch + _CHOICES + _ROUND
            before = choose_all(p, scratch, first, d)
            d2 = as_half(best_factor(p, first, d), scratch + _CODES)
            after = choose_all(p, scratch, second, d2)
            if after < before and abs(d) <= LARGEST_HALF:  # an infinite factor stays, to be seen
                write(p, scratch, second, d2, o)
            else:
                write(p, scratch, first, d, o)

    return quantize


def _counting(group: Group, large_first: bool) -> tuple[Any, Any, Any]:
    """How much the weights of a group count, a dot product, and the error of (scale v - x), both counted so."""
    plain_dot, plain_error, product, residual = group.dot, group.error, group.product, group.residual
    n = np.float32(group.size)

    if not large_first:

        @inline
        def alike(x):  # type: ignore[no-untyped-def]
            return x

        @inline
        def dot(w, v, x):  # type: ignore[no-untyped-def]
            return plain_dot(v, x)

        @inline
        def error(w, x, v, scale):  # type: ignore[no-untyped-def]
            return plain_error(x, v, scale, _ZERO)

        return alike, dot, error

    square = each(group, _square_and)

    @inline
    def by_size(x):  # type: ignore[no-untyped-def]
        return square(x, plain_dot(x, x) / n, _ZERO)

    @inline
    def weighed_dot(w, v, x):  # type: ignore[no-untyped-def]
        return plain_dot(product(w, v), x)

    @inline
    def weighed_error(w, x, v, scale):  # type: ignore[no-untyped-def]
        r = residual(x, v, scale, _ZERO)
        return plain_dot(product(w, r), r)

    return by_size, weighed_dot, weighed_error


@inline
def _square_and(v, mean, unused):  # type: ignore[no-untyped-def]
    return v * v + splat(mean)


def _uniform(least: int, most: int) -> tuple[Any, Any]:
    """Whole numbers from ``least`` to ``most``, and how they are counted from 0."""
    low, high, zero = np.float32(least), np.float32(most), np.float32(-least)

    @inline
    def value(v):  # type: ignore[no-untyped-def]
        return at_most(at_least(nearest(v), splat(low)), splat(high))

    @inline
    def code(v):  # type: ignore[no-untyped-def]
        return value(v) + splat(zero)

    return value, code


def _table(values: Sequence[int]) -> tuple[Any, Any]:
    """The values of a table in rising order, and their places in it."""

    def stairs(heights: Sequence[float]) -> Any:
        """``f(v)``: the height at the value that is nearest to v."""

        def emit(b: Any, v: Any) -> Any:
            filled = lambda number: ir.Constant(f32x16.llvm, [float(number)] * 16)  # noqa: E731
            out = filled(heights[0])
            for i in range(1, len(values)):
                border = filled((values[i - 1] + values[i]) / 2)
                out = b.select(b.fcmp_ordered(">", v, border), filled(heights[i]), out)
            return out

        return unary(f32x16, f32x16, emit)

    return stairs(values), stairs(range(len(values)))


def _ends(least: float, most: float, tries: int, reach: float) -> tuple[float, ...]:
    """Values around both ends of a range, for the largest weight to meet."""
    around = np.linspace(-reach, reach, tries)
    return tuple((least + around).tolist() + (most + around).tolist())


@inline
def _pack_q3_k(q, scales, d, o):  # type: ignore[no-untyped-def]
    packing.one_bit(q, o, 2)
    packing.two_bits(q, o + 32, 0)
    packing.packed_16_scales(scales, o + 96)
    store_f16(o + 108, d)


@inline
def _pack_q6_k(q, scales, d, o):  # type: ignore[no-untyped-def]
    packing.six_bits(q, o, o + 128)
    packing.bytes_of(scales, 16, o + 192)
    store_f16(o + 208, d)


@inline
def _pack_iq4_nl(q, scales, d, o):  # type: ignore[no-untyped-def]
    store_f16(o, d)
    packing.nibbles(q, o + 2)


@inline
def _pack_iq4_xs(q, scales, d, o):  # type: ignore[no-untyped-def]
    store_f16(o, d)
    packing.split_6_bits(scales, o + 2, o + 4)
    for j in range(8):
        packing.nibbles(q + 32 * j, o + 8 + 16 * j)


q3_k = _symmetric(16, 256, *_uniform(-4, 3), _ends(-4, 3, 9, 1.0), (-32, 31), 110, _pack_q3_k, True)
q6_k = _symmetric(16, 256, *_uniform(-32, 31), _ends(-32, 31, 9, 1.5), (-128, 127), 210, _pack_q6_k)
iq4_nl = _symmetric(32, 32, *_table(VALUES), _ends(-127, 113, 9, 9.0), (1, 1), 18, _pack_iq4_nl)
iq4_xs = _symmetric(32, 256, *_table(VALUES), _ends(-127, 113, 9, 9.0), (-32, 31), 136, _pack_iq4_xs)
