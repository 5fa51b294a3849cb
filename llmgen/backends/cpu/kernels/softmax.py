"""The online softmax over a block of scores, for a few rows of attention at once (attention_rows.py).

All arithmetic is lane by lane, and the maximum and the sum of a row fold the upper half of its lanes onto the lower
until one is left: a row's result is the one it has alone.  The folds of several rows share their shuffles, since
what is left of two rows after one fits into one vector.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from llmgen.backends.cpu.kernels.abi import inline
from llmgen.backends.cpu.kernels.functions import EXP_TERMS, LN2_HIGH, LN2_LOW, LOG2E, tanh
from llmgen.backends.cpu.kernels.kv.loads import zeros
from llmgen.backends.cpu.kernels.layout import KEY_BLOCK, KEY_GROUP, ROW_STATE
from llmgen.backends.cpu.kernels.simd import (
    I32,
    call_intrinsic,
    constant,
    f32x16,
    first_lane,
    i32x16,
    load_f32,
    load_f32x16,
    load_i64,
    offset,
    permute,
    pointer,
    splat,
    splat_value,
    store_f32x16,
    ternary,
    unary,
)

FLOOR = np.float32(-1e30)
"""The maximum of no scores; finite, so that masked scores (minus infinity) get the weight 0."""
LEAST = -64.0
"""A score this far below the largest weighs nothing: e^-64 is no part of a float32 sum with 1.

Exactly nothing, as a masked key must; and tiny weights would make products too small for a
normal number, which take the processor a hundred times as long.
"""
CHANGE = 20
"""Where the state of a row has the factor of the last block: what the sums before it were multiplied by."""
_SHIFT = 12582912.0  # 1.5 * 2^23: a small number plus that is rounded to an integer, which stands in the lowest bits

_Emit = Callable[[Any, Any, Any], Any]
_lanes = constant(f32x16, [float(i) for i in range(KEY_GROUP)])


# ---- one row ------------------------------------------------------------------------------


@inline
def first_seen(position, window):  # type: ignore[no-untyped-def]
    """The first position that a query sees; window: its keys, or -n: those from the last multiple of n on."""
    return max(0, position + 1 - window) if window > 0 else position // -window * -window


def _keep_scores(b: Any, v: Any, low: Any, high: Any) -> Any:
    lanes = ir.Constant(i32x16.llvm, list(range(16)))
    above = b.icmp_signed(">=", lanes, splat_value(b, b.trunc(low, I32), i32x16.llvm))
    below = b.icmp_signed("<", lanes, splat_value(b, b.trunc(high, I32), i32x16.llvm))
    return b.select(b.and_(above, below), v, _all(float("-inf")))


keep_scores = ternary([f32x16, types.int64, types.int64], f32x16, _keep_scores)
"""``keep(v, low, high)``: lanes low <= i < high of v; the others become minus infinity."""


@inline
def adjust_row(s, state, start, n_groups, window, cap):  # type: ignore[no-untyped-def]
    """The scores of one row for the keys from position ``start`` on, in place, as its layer and its place want them.

    s: f32 [n_groups * KEY_GROUP].  Scores are capped (cap: soft cap, or 0), lose with distance, and
    are minus infinity outside the row's window.
    """
    position = load_i64(state + 8)
    high = min(position + 1 - start, KEY_BLOCK)
    low = max(first_seen(position, window) - start, 0)
    slope = load_f32(state + 16)
    if cap > 0:
        for g in range(n_groups):
            v = load_f32x16(s + 64 * g)
            store_f32x16(s + 64 * g, splat(cap) * tanh(v * splat(np.float32(1.0) / cap)))
    if slope != np.float32(0.0):
        for g in range(n_groups):
            away = splat(np.float32(start + KEY_GROUP * g - position)) + _lanes()  # minus the distance
            store_f32x16(s + 64 * g, load_f32x16(s + 64 * g) + splat(slope) * away)
    if low > 0 or high < n_groups * KEY_GROUP:
        for g in range(n_groups):
            v = keep_scores(load_f32x16(s + 64 * g), low - KEY_GROUP * g, high - KEY_GROUP * g)
            store_f32x16(s + 64 * g, v)


@inline
def scale_change(before, m):  # type: ignore[no-untyped-def]
    """e^(before - m), exactly 0 for a row that had nothing yet."""
    if before == FLOOR:
        return np.float32(0.0)
    if before == m:
        return np.float32(1.0)
    return first_lane(weight(splat(before - m)))


# ---- lane by lane --------------------------------------------------------------------------


def _all(value: float) -> ir.Constant:
    return ir.Constant(f32x16.llvm, [float(np.float32(value))] * 16)


def _fma(b: Any, x: Any, y: Any, z: Any) -> Any:
    return call_intrinsic(b, "llvm.fma.v16f32", f32x16.llvm, [x, y, z])


def _weight(b: Any, d: Any) -> Any:
    """``functions.exp`` bit by bit, for d from LEAST to 0, and 0 below LEAST; a NaN stays NaN."""
    shifted = b.fadd(b.fmul(d, _all(LOG2E)), _all(_SHIFT))
    n = b.fsub(shifted, _all(_SHIFT))
    r = _fma(b, n, _all(LN2_LOW), _fma(b, n, _all(LN2_HIGH), d))
    p = _all(EXP_TERMS[0])
    for term in EXP_TERMS[1:]:
        p = _fma(b, p, r, _all(term))
    p = _fma(b, p, b.fmul(r, r), b.fadd(r, _all(1.0)))
    bits = b.shl(b.bitcast(shifted, i32x16.llvm), ir.Constant(i32x16.llvm, [23] * 16))
    power = b.bitcast(b.add(bits, ir.Constant(i32x16.llvm, [127 << 23] * 16)), f32x16.llvm)
    return b.select(b.fcmp_ordered("<", d, _all(LEAST)), _all(0.0), b.fmul(p, power))


weight = unary(f32x16, f32x16, _weight)
"""e^d of a score that is -d below the largest."""


def _larger(b: Any, x: Any, y: Any) -> Any:
    """The larger of both; y if one is a NaN: no maximum need keep it, since its weight is a NaN, too."""
    return b.select(b.fcmp_ordered(">", x, y), x, y)


# ---- some rows -----------------------------------------------------------------------------


def _folded(rows: int, combine: _Emit) -> Any:
    """``f(vectors)``: lane r is what ``combine`` makes of the 16 lanes of the r-th vector."""

    def emit(b: Any, packed: Any) -> Any:
        left = [b.extract_value(packed, r) for r in range(rows)]
        n = 16  # lanes that are left of a row
        while n > 1:
            low = [first + lane for first in range(0, 16, n) for lane in range(n // 2)]
            low += [16 + lane for lane in low]
            high = [lane + n // 2 for lane in low]
            pairs = [(left[i], left[min(i + 1, len(left) - 1)]) for i in range(0, len(left), 2)]
            left = [combine(b, permute(b, x, low, y), permute(b, x, high, y)) for x, y in pairs]
            n //= 2
        return left[0]

    return unary(types.UniTuple(f32x16, rows), f32x16, emit)


def _of_rows(rows: int) -> Any:
    """``take(p, stride)``: lane r is the float at p + r * stride, for ``rows`` lanes; the others are 0."""

    @intrinsic
    def take(typing_context: Any, p: Any, stride: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            address, step = args
            out = _all(0.0)
            for r in range(rows):
                value = b.load(pointer(b, address), align=4, typ=ir.FloatType())
                out = b.insert_element(out, value, ir.Constant(I32, r))
                address = b.add(address, step)
            return out

        return f32x16(types.intp, types.intp), generate

    return take


def _to_rows(rows: int) -> Any:
    """``put(v, p, stride)``: the other way round."""

    @intrinsic
    def put(typing_context: Any, v: Any, p: Any, stride: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            vector, address, step = args
            for r in range(rows):
                b.store(b.extract_element(vector, ir.Constant(I32, r)), pointer(b, address), align=4)
                address = b.add(address, step)
            return context.get_dummy_value()

        return types.void(f32x16, types.intp, types.intp), generate

    return put


def _spread(rows: int) -> Any:
    """``spread(v)``: for each row a vector of its lane."""
    tile = types.UniTuple(f32x16, rows)

    @intrinsic
    def spread(typing_context: Any, v: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            return context.make_tuple(b, tile, [permute(b, args[0], [r] * 16) for r in range(rows)])

        return tile(f32x16), generate

    return spread


def _raise(rows: int) -> Any:
    """``raise_to(tops, s)``: the larger of each row's and 16 of its scores at s, KEY_BLOCK floats a row."""
    tile = types.UniTuple(f32x16, rows)

    @intrinsic
    def raise_to(typing_context: Any, tops: Any, s: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            out = []
            for r in range(rows):
                scores = b.load(pointer(b, offset(b, args[1], 4 * KEY_BLOCK * r)), align=4, typ=f32x16.llvm)
                out.append(_larger(b, b.extract_value(args[0], r), scores))
            return context.make_tuple(b, tile, out)

        return tile(tile, types.intp), generate

    return raise_to


def _weigh(rows: int) -> Any:
    """``weigh(totals, tops, s)``: 16 scores of each row at s become weights, which are added to the totals."""
    tile = types.UniTuple(f32x16, rows)

    @intrinsic
    def weigh(typing_context: Any, totals: Any, tops: Any, s: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            out = []
            for r in range(rows):
                here = pointer(b, offset(b, args[2], 4 * KEY_BLOCK * r))
                score = b.load(here, align=4, typ=f32x16.llvm)
                w = _weight(b, b.fsub(score, b.extract_value(args[1], r)))
                b.store(w, here, align=4)
                out.append(b.fadd(b.extract_value(args[0], r), w))
            return context.make_tuple(b, tile, out)

        return tile(tile, tile, types.intp), generate

    return weigh


def softmax_of(rows: int) -> Any:
    """``softmax(s, state, state_bytes, start, n_groups, window, width, cap)``: scores -> weights e^(s - m').

    s: f32 [rows][KEY_BLOCK], the scores of n_groups * KEY_GROUP keys from position ``start`` on, in place; those
    outside a row's window get the weight 0.  The rows' m, l and o, state_bytes apart, are brought up to m'.
    """
    take, put, spread, zero = _of_rows(rows), _to_rows(rows), _spread(rows), zeros(rows)
    raise_to, weigh = _raise(rows), _weigh(rows)
    largest, total = _folded(rows, _larger), _folded(rows, lambda b, x, y: b.fadd(x, y))

    @inline
    def softmax(s, state, state_bytes, start, n_groups, window, width, cap):  # type: ignore[no-untyped-def]
        for r in range(rows):
            adjust_row(s + 4 * KEY_BLOCK * r, state + r * state_bytes, start, n_groups, window, cap)
        before = take(state, state_bytes)
        tops = spread(before)
        for g in range(n_groups):
            tops = raise_to(tops, s + 64 * g)
        m = largest(tops)
        tops, totals = spread(m), zero()
        for g in range(n_groups):
            totals = weigh(totals, tops, s + 64 * g)
        change = weight(before - m)
        put(m, state, state_bytes)
        put(change, state + CHANGE, state_bytes)
        put(take(state + 4, state_bytes) * change + total(totals), state + 4, state_bytes)
        for r in range(rows):
            p = state + r * state_bytes
            factor = load_f32(p + CHANGE)
            if factor != np.float32(1.0):
                for i in range(ROW_STATE, ROW_STATE + 4 * width, 64):
                    store_f32x16(p + i, load_f32x16(p + i) * splat(factor))

    return softmax
