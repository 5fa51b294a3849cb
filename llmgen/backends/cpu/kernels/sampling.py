"""Helpers of choice.py: sums and maxima over many logits, 16 at a time.

``x`` and ``out`` are addresses of float32 [n]; ``spare`` that of float32 [16], scratch space
for the end of a vocabulary that is no multiple of 16.  Sums are kept per block of BLOCK values,
in an order that no CPU changes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llmgen.backends.cpu.kernels.abi import inline
from llmgen.backends.cpu.kernels.sampling_arguments import BLOCK, LANES
from llmgen.backends.cpu.kernels.simd import (
    at_least,
    bits_float,
    constant,
    f32x16,
    float_bits,
    fma,
    i32x16,
    load_f32,
    load_f32x16,
    max_f32x16,
    maximum,
    nearest,
    prefetch,
    shift,
    splat,
    store_f32,
    store_f32x16,
    sum_f32x16,
    to_int,
    zero_f32x16,
)


def _all(value: float) -> Any:
    return constant(f32x16, [float(np.float32(value))] * 16)


AHEAD = 2048
"""Bytes ahead of reading that logits are asked for: half of them are in another core's cache."""

_LOWEST = _all(-87.0)  # e to the power of less is no normal number
_LOG2E, _LN2_HIGH, _LN2_LOW = _all(1.44269504), _all(-0.693359375), _all(2.12194440e-4)
# minimax polynomial for e^r on |r| <= ln(2) / 2, relative error 1.4e-7
_C0, _C1, _C2 = _all(1.0), _all(9.9999983464e-01), _all(4.9999027153e-01)
_C3, _C4, _C5 = _all(1.6667185244e-01), _all(4.1901671638e-02), _all(8.3187797772e-03)
_exponent = shift(i32x16, "shl", [23] * 16)


@inline
def rest_of(x, first, n, spare, fill):  # type: ignore[no-untyped-def]
    """Copy the last values [first, n), fewer than 16, to ``spare``; its address."""
    for i in range(16):
        store_f32(spare + 4 * i, load_f32(x + 4 * (first + i)) if first + i < n else fill)
    return spare


@inline
def weight(d):  # type: ignore[no-untyped-def]
    """e^d to about 2e-7 for -87 <= d <= 0; leaner than functions.exp, which also takes what is above."""
    n = nearest(d * _LOG2E())
    r = fma(n, _LN2_LOW(), fma(n, _LN2_HIGH(), d))
    p = fma(fma(fma(fma(fma(_C5(), r, _C4()), r, _C3()), r, _C2()), r, _C1()), r, _C0())
    return bits_float(float_bits(p) + _exponent(to_int(n)))


@inline
def total_of_block(x, start, n, spare, peak):  # type: ignore[no-untyped-def]
    """Sum of e^(x - peak) over the block that begins at ``start``; peak: 16 lanes."""
    stop = min(n, start + BLOCK)
    whole = stop // 16 * 16
    total = zero_f32x16()
    for i in range(4 * start, 4 * whole, 64):
        total = total + weight(at_least(load_f32x16(x + i) - peak, _LOWEST()))
    if whole < stop:
        rest = rest_of(x, whole, n, spare, np.float32(-np.inf))
        total = total + weight(at_least(load_f32x16(rest) - peak, _LOWEST()))
    return sum_f32x16(total)


@inline
def scaled_total_of_block(x, start, n, spare, peak, divisor):  # type: ignore[no-untyped-def]
    """Sum of e^((x - peak) / divisor) over a block; peak and divisor: 16 lanes."""
    stop = min(n, start + BLOCK)
    whole = stop // 16 * 16
    total = zero_f32x16()
    for i in range(4 * start, 4 * whole, 64):
        total = total + weight(at_least((load_f32x16(x + i) - peak) / divisor, _LOWEST()))
    if whole < stop:
        rest = rest_of(x, whole, n, spare, np.float32(-np.inf))
        total = total + weight(at_least((load_f32x16(rest) - peak) / divisor, _LOWEST()))
    return sum_f32x16(total)


@inline
def dot_of_block(x, start, n, spare, peak):  # type: ignore[no-untyped-def]
    """Sum of e^(x - peak) (x - peak) over a block."""
    stop = min(n, start + BLOCK)
    whole = stop // 16 * 16
    dot = zero_f32x16()
    for i in range(4 * start, 4 * whole, 64):
        distance = at_least(load_f32x16(x + i) - peak, _LOWEST())
        dot = dot + weight(distance) * distance
    if whole < stop:
        distance = at_least(load_f32x16(rest_of(x, whole, n, spare, np.float32(-np.inf))) - peak, _LOWEST())
        dot = dot + weight(distance) * distance
    return sum_f32x16(dot)


@inline
def moments_of_block(x, start, n, spare, origin):  # type: ignore[no-untyped-def]
    """Sums of x - origin and of its square over a block."""
    stop = min(n, start + BLOCK)
    whole = stop // 16 * 16
    total, square = zero_f32x16(), zero_f32x16()
    for i in range(4 * start, 4 * whole, 64):
        distance = load_f32x16(x + i) - splat(origin)
        total = total + distance
        square = square + distance * distance
    if whole < stop:
        distance = load_f32x16(rest_of(x, whole, n, spare, origin)) - splat(origin)
        total = total + distance
        square = square + distance * distance
    return sum_f32x16(total), sum_f32x16(square)


@inline
def lane_maxima(x, n, spare, out):  # type: ignore[no-untyped-def]
    """out = the largest of every 16th x in each block, 16 per block; returns the largest of all, NaN where one is."""
    lowest = splat(np.float32(-np.inf))
    top = lowest
    for start in range(0, n, BLOCK):
        stop = min(n, start + BLOCK)
        whole = stop // 32 * 32
        even, odd = lowest, lowest
        for i in range(4 * start, 4 * whole, 128):
            prefetch(x + i + AHEAD)
            prefetch(x + i + AHEAD + 64)
            even = maximum(even, load_f32x16(x + i))
            odd = maximum(odd, load_f32x16(x + i + 64))
        for i in range(whole, stop, 16):
            even = maximum(even, load_f32x16(rest_of(x, i, n, spare, np.float32(-np.inf))))
        even = maximum(even, odd)
        top = maximum(top, even)
        store_f32x16(out + 4 * LANES * (start // BLOCK), even)
    return max_f32x16(top)
