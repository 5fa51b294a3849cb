"""The weights that share a scale, 16 or 32 of them, in one or two registers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from llmgen.backends.cpu.kernels.abi import inline
from llmgen.backends.cpu.kernels.simd import (
    first_lane,
    fma,
    i8x16,
    load_f16,
    load_f32x16,
    max_f32x16,
    maximum,
    nearest,
    scalar_storer,
    splat,
    store_f16,
    storer,
    sum_f32x16,
    to_i8,
    to_int,
)

store_i8x16 = storer(i8x16)
store_u8 = scalar_storer(types.int64, ir.IntType(8), "trunc")


@dataclass(frozen=True)
class Group:
    """``size`` weights as a tuple of vectors, and what is done with all of them at once."""

    size: int
    load: Any  # (p) -> weights: float32 at p
    dot: Any  # (v, w) -> the sum of the products
    total: Any  # (v) -> the sum
    largest: Any  # (v) -> the largest
    smallest: Any  # (v) -> the smallest
    error: Any  # (x, q, scale, less) -> the sum of (scale q - less - x)^2
    product: Any  # (v, w) -> the products
    residual: Any  # (x, q, scale, less) -> scale q - less - x
    store: Any  # (p, q): whole numbers as bytes


@inline
def _residual(x, q, scale, less):  # type: ignore[no-untyped-def]
    return fma(q, splat(scale), splat(-less)) - x


@inline
def _negative(v):  # type: ignore[no-untyped-def]
    return v * splat(np.float32(-1.0))


def _of_16() -> Group:
    @inline
    def load(p):  # type: ignore[no-untyped-def]
        return (load_f32x16(p),)

    @inline
    def dot(v, w):  # type: ignore[no-untyped-def]
        return sum_f32x16(v[0] * w[0])

    @inline
    def total(v):  # type: ignore[no-untyped-def]
        return sum_f32x16(v[0])

    @inline
    def largest(v):  # type: ignore[no-untyped-def]
        return max_f32x16(v[0])

    @inline
    def smallest(v):  # type: ignore[no-untyped-def]
        return -max_f32x16(_negative(v[0]))

    @inline
    def error(x, q, scale, less):  # type: ignore[no-untyped-def]
        r = _residual(x[0], q[0], scale, less)
        return sum_f32x16(r * r)

    @inline
    def product(v, w):  # type: ignore[no-untyped-def]
        return (v[0] * w[0],)

    @inline
    def residual(x, q, scale, less):  # type: ignore[no-untyped-def]
        return (_residual(x[0], q[0], scale, less),)

    @inline
    def store(p, q):  # type: ignore[no-untyped-def]
        store_i8x16(p, to_i8(to_int(q[0])))

    return Group(16, load, dot, total, largest, smallest, error, product, residual, store)


def _of_32() -> Group:
    @inline
    def load(p):  # type: ignore[no-untyped-def]
        return load_f32x16(p), load_f32x16(p + 64)

    @inline
    def dot(v, w):  # type: ignore[no-untyped-def]
        return sum_f32x16(fma(v[1], w[1], v[0] * w[0]))

    @inline
    def total(v):  # type: ignore[no-untyped-def]
        return sum_f32x16(v[0] + v[1])

    @inline
    def largest(v):  # type: ignore[no-untyped-def]
        return max_f32x16(maximum(v[0], v[1]))

    @inline
    def smallest(v):  # type: ignore[no-untyped-def]
        return -max_f32x16(maximum(_negative(v[0]), _negative(v[1])))

    @inline
    def error(x, q, scale, less):  # type: ignore[no-untyped-def]
        r0 = _residual(x[0], q[0], scale, less)
        r1 = _residual(x[1], q[1], scale, less)
        return sum_f32x16(fma(r1, r1, r0 * r0))

    @inline
    def product(v, w):  # type: ignore[no-untyped-def]
        return v[0] * w[0], v[1] * w[1]

    @inline
    def residual(x, q, scale, less):  # type: ignore[no-untyped-def]
        return _residual(x[0], q[0], scale, less), _residual(x[1], q[1], scale, less)

    @inline
    def store(p, q):  # type: ignore[no-untyped-def]
        store_i8x16(p, to_i8(to_int(q[0])))
        store_i8x16(p + 16, to_i8(to_int(q[1])))

    return Group(32, load, dot, total, largest, smallest, error, product, residual, store)


GROUPS = {16: _of_16(), 32: _of_32()}


def each(group: Group, function: Any) -> Any:
    """``f(v, scalars...)`` of one vector, for all vectors of a group, with two scalars."""
    if group.size == 16:

        @inline
        def one(v, a, b):  # type: ignore[no-untyped-def]
            return (function(v[0], a, b),)

        return one

    @inline
    def two(v, a, b):  # type: ignore[no-untyped-def]
        return function(v[0], a, b), function(v[1], a, b)

    return two


@inline
def rounded(x):  # type: ignore[no-untyped-def]
    """The nearest whole number, float32."""
    return first_lane(nearest(splat(x)))


@inline
def as_half(x, scratch):  # type: ignore[no-untyped-def]
    """x in half precision, as float32."""
    store_f16(scratch, x)
    return load_f16(scratch)


LARGEST_HALF = np.float32(65504.0)
_HALF_STEP = np.float32(2.0**-24)  # between neighbouring half-precision numbers below 2^-14
_A_LITTLE = np.float32(2.0**-5)


@inline
def factor_for(x, scratch):  # type: ignore[no-untyped-def]
    """x in half precision, for a factor that times the largest whole number has to be about the largest scale.

    A tiny one is rounded away from zero: as zero it would lose all weights, though a larger factor and
    smaller whole numbers can tell them.  One a little too large for half precision becomes its
    largest number, any other infinite.
    """
    half = as_half(x, scratch)
    if abs(half) < abs(x) * (np.float32(1.0) - _A_LITTLE):
        return half + (_HALF_STEP if x > np.float32(0.0) else -_HALF_STEP)
    if abs(half) > LARGEST_HALF and abs(x) < LARGEST_HALF * (np.float32(1.0) + _A_LITTLE):
        return LARGEST_HALF if x > np.float32(0.0) else -LARGEST_HALF
    return half


@inline
def clamped(x, low, high):  # type: ignore[no-untyped-def]
    return min(max(x, low), high)


@inline
def inverse(x):  # type: ignore[no-untyped-def]
    """1 / x, and 0 for a 0."""
    return np.float32(1.0) / x if x != np.float32(0.0) else np.float32(0.0)
