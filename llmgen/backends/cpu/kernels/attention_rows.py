"""One row of attention: scores, softmax, weighted values, block by block.

A *row* is one query: one head of one token.  It keeps a running maximum m, sum l and
weighted values o (the online softmax of Milakov and Gimelshein, arXiv:1805.02867, as in
flash attention); a block of scores s and values v makes of them

    m' = max(m, max s)    l' = l e^(m - m') + sum e^(s - m')    o' = o e^(m - m') + sum e^(s - m') v

Several rows are taken at once only to read the keys and values once; each is summed by
itself, so its result does not depend on the others.

A row may lose score with distance (ALiBi, arXiv:2108.12409): its slope times the positions between.
It may have a sink (arXiv:2309.17453), a score without a value: m and l begin with it.

Row state, ``state_size`` bytes: f32 m, f32 l, int64 last position that it sees, f32 slope, at MERGED an int64,
padding to ROW_STATE bytes, f32 o [width].  Scores: f32 [KEY_BLOCK] a row, one row behind the other.  Sizes are in
bytes, but key_dim, value_dim and width (value_dim rounded up to whole vectors) count values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from llmgen.backends.cpu.kernels.abi import inline
from llmgen.backends.cpu.kernels.decode_plan import MERGED
from llmgen.backends.cpu.kernels.dot import AVX512
from llmgen.backends.cpu.kernels.functions import exp, tanh
from llmgen.backends.cpu.kernels.kv import KVKind
from llmgen.backends.cpu.kernels.kv.loads import parts_of
from llmgen.backends.cpu.kernels.kv.passes import rows_of_values, scores_of, values_of
from llmgen.backends.cpu.kernels.layout import (
    KEY_BLOCK,
    KEY_GROUP,
    ROW_STATE,
    SCORE_ROWS,
    row_state_bytes,
    value_width,
)
from llmgen.backends.cpu.kernels.simd import (
    I32,
    binary,
    constant,
    f32x16,
    first_lane,
    i32x16,
    load_f32,
    load_f32x16,
    load_i64,
    max_f32x16,
    maximum,
    splat,
    splat_value,
    store_f32,
    store_f32x16,
    store_i64,
    sum_f32x16,
    ternary,
    zero_f32x16,
)

_FLOOR = np.float32(-1e30)  # the maximum of no scores; finite, so that masked scores (-inf) get the weight 0

ROWS = 8 if AVX512 else 6
"""Rows of a full pass: as many as the registers hold."""
assert ROWS <= SCORE_ROWS


width_of, state_size = inline(value_width), inline(row_state_bytes)


def _keep_scores(b: Any, v: Any, low: Any, high: Any) -> Any:
    lanes = ir.Constant(i32x16.llvm, list(range(16)))
    above = b.icmp_signed(">=", lanes, splat_value(b, b.trunc(low, I32), i32x16.llvm))
    below = b.icmp_signed("<", lanes, splat_value(b, b.trunc(high, I32), i32x16.llvm))
    return b.select(b.and_(above, below), v, ir.Constant(f32x16.llvm, [float("-inf")] * 16))


keep_scores = ternary([f32x16, types.int64, types.int64], f32x16, _keep_scores)
"""``keep(v, low, high)``: lanes low <= i < high of v; the others become minus infinity."""


def _unless_below(b: Any, w: Any, d: Any) -> Any:
    too_low = b.fcmp_ordered("<", d, ir.Constant(f32x16.llvm, [LEAST] * 16))
    return b.select(too_low, ir.Constant(f32x16.llvm, [0.0] * 16), w)


LEAST = -64.0
"""A score this far below the largest weighs nothing: e^-64 is no part of a float32 sum with 1.

Exactly nothing, as a masked key must; and tiny weights would make products too small for a
normal number, which take the processor a hundred times as long.
"""
unless_below = binary(f32x16, f32x16, f32x16, _unless_below)
_lanes = constant(f32x16, [float(i) for i in range(KEY_GROUP)])


@inline
def first_seen(position, window):  # type: ignore[no-untyped-def]
    """The first position that a query sees; window: its keys, or -n: those from the last multiple of n on."""
    return max(0, position + 1 - window) if window > 0 else position // -window * -window


@inline
def weight(d):  # type: ignore[no-untyped-def]
    """e^d of a score that is -d below the largest."""
    return unless_below(exp(d), d)


@inline
def softmax_row(s, state, start, n_groups, window, width, cap):  # type: ignore[no-untyped-def]
    """Scores of one row -> weights e^(s - m'), and the row's m, l and o brought up to m'.

    s: f32 [n_groups * KEY_GROUP], the scores of the keys from position ``start`` on, in place;
    those outside the row's window get the weight 0.  cap: soft cap of the scores, or 0.
    """
    position = load_i64(state + 8)
    high = min(position + 1 - start, KEY_BLOCK)
    low = max(first_seen(position, window) - start, 0)
    partly = low > 0 or high < n_groups * KEY_GROUP
    slope = load_f32(state + 16)
    if cap > 0:
        for g in range(n_groups):
            v = load_f32x16(s + 64 * g)
            store_f32x16(s + 64 * g, splat(cap) * tanh(v * splat(np.float32(1.0) / cap)))
    if slope != np.float32(0.0):
        for g in range(n_groups):
            away = splat(np.float32(start + KEY_GROUP * g - position)) + _lanes()  # minus the distance
            store_f32x16(s + 64 * g, load_f32x16(s + 64 * g) + splat(slope) * away)
    if partly:
        for g in range(n_groups):
            v = keep_scores(load_f32x16(s + 64 * g), low - KEY_GROUP * g, high - KEY_GROUP * g)
            store_f32x16(s + 64 * g, v)
    top = splat(load_f32(state))
    for g in range(n_groups):
        top = maximum(top, load_f32x16(s + 64 * g))
    before = load_f32(state)
    m = max_f32x16(top)
    total = zero_f32x16()
    for g in range(n_groups):
        v = weight(load_f32x16(s + 64 * g) - splat(m))
        total = total + v
        store_f32x16(s + 64 * g, v)
    change = scale_change(before, m)
    store_f32(state, m)
    store_f32(state + 4, load_f32(state + 4) * change + sum_f32x16(total))
    if change != np.float32(1.0):
        o = state + ROW_STATE
        for i in range(0, 4 * width, 64):
            store_f32x16(o + i, load_f32x16(o + i) * splat(change))


@inline
def scale_change(before, m):  # type: ignore[no-untyped-def]
    """e^(before - m), exactly 0 for a row that had nothing yet."""
    if before == _FLOOR:
        return np.float32(0.0)
    if before == m:
        return np.float32(1.0)
    return first_lane(weight(splat(before - m)))


def _pass(rows: int, groups: int, vectors: int, keys: KVKind, values: KVKind, asks: bool) -> Any:
    """Attention of ``rows`` rows over one block, ``groups`` key groups and ``vectors`` value vectors at a time.

    asks: whether it asks for the next block's keys and values while it reads those of this one.
    """
    together = rows_of_values(values, rows)
    take_scores = scores_of(keys, rows, groups, asks)
    add_values = values_of(values, together, max(vectors, parts_of(values)), asks)
    others = values_of(values, together, max(vectors, parts_of(values)), False)

    @inline
    def attend(q, where, s, state, state_bytes, start, first_key, n_keys, key_dim, width, window, cap):  # type: ignore[no-untyped-def]
        """``rows`` rows over a block; the arguments of ``over_block``, and state_bytes apart their states."""
        k, v, coming = where
        n_groups = ((n_keys + KEY_GROUP - 1) // KEY_GROUP + groups - 1) // groups * groups
        take_scores(q, k, coming, s, n_groups, key_dim)
        for r in range(rows):
            softmax_row(s + r * KEY_BLOCK * 4, state + r * state_bytes, start, n_groups, window, width, cap)
        scaled = s + SCORE_ROWS * KEY_BLOCK * 4
        add_values(s, scaled, v, coming, state + ROW_STATE, state_bytes, first_key, n_keys, width)
        for r in range(together, rows, together):
            here, o = s + r * KEY_BLOCK * 4, state + r * state_bytes + ROW_STATE
            others(here, scaled, v, coming, o, state_bytes, first_key, n_keys, width)

    return attend


def over_block_of(keys: KVKind, values: KVKind, asks: bool) -> Any:
    """``over_block`` for a cache of these kinds; asks: see ``_pass``."""
    full = _pass(ROWS, 2, 2, keys, values, asks)
    three = _pass(3, 2, 2, keys, values, asks)
    two = _pass(2, 2, 2, keys, values, asks)
    single = _pass(1, 4, 4, keys, values, asks)

    @inline
    def over_block(n, q, where, s, state, start, first_key, n_keys, key_dim, value_dim, window, cap):  # type: ignore[no-untyped-def]
        """n rows over one block, in as few passes as possible.

        q: f32 [n][key_dim]; s: room for SCORE_BYTES; state: n row states.  The block begins at position ``start``;
        keys from n_keys on are seen by no row, nor those before first_key.
        where: the block's keys and values, as kernels/kv says, and the block that is read after it (kv/asking.py).
        """
        width, state_bytes = width_of(value_dim), state_size(value_dim)
        r = 0
        while r < n:
            qr, st = q + 4 * r * key_dim, state + r * state_bytes
            if n - r >= ROWS:
                full(qr, where, s, st, state_bytes, start, first_key, n_keys, key_dim, width, window, cap)
                r += ROWS
            elif n - r >= 3:
                three(qr, where, s, st, state_bytes, start, first_key, n_keys, key_dim, width, window, cap)
                r += 3
            elif n - r == 2:
                two(qr, where, s, st, state_bytes, start, first_key, n_keys, key_dim, width, window, cap)
                r += 2
            else:
                single(qr, where, s, st, state_bytes, start, first_key, n_keys, key_dim, width, window, cap)
                r += 1

    return over_block


@inline
def clear_rows(state, n, position, value_dim, slopes, sinks):  # type: ignore[no-untyped-def]
    """The states of n rows of a token before their first block; slopes, sinks: f32 [n], or 0 for none."""
    for r in range(n):
        p = state + r * state_size(value_dim)
        store_f32(p, load_f32(sinks + 4 * r) if sinks else _FLOOR)
        store_f32(p + 4, np.float32(1.0) if sinks else np.float32(0.0))
        store_i64(p + 8, position)
        store_f32(p + 16, load_f32(slopes + 4 * r) if slopes else np.float32(0.0))
        store_i64(p + MERGED, 0)
        for i in range(0, 4 * width_of(value_dim), 64):
            store_f32x16(p + ROW_STATE + i, zero_f32x16())


@inline
def merge_row(state, total, value_dim):  # type: ignore[no-untyped-def]
    """Add a block's row state to the running one."""
    before, here = load_f32(total), load_f32(state)
    # the larger of both; a NaN in either stays
    m = before if before > here or before != before else here
    old, new = scale_change(before, m), scale_change(here, m)
    store_f32(total, m)
    store_f32(total + 4, load_f32(total + 4) * old + load_f32(state + 4) * new)
    for i in range(ROW_STATE, state_size(value_dim), 64):
        store_f32x16(total + i, load_f32x16(total + i) * splat(old) + load_f32x16(state + i) * splat(new))


@inline
def write_row(state, out, value_dim):  # type: ignore[no-untyped-def]
    """out = o / l."""
    inverse = np.float32(1.0) / load_f32(state + 4)
    whole = value_dim // 16 * 16
    for i in range(0, 4 * whole, 64):
        store_f32x16(out + i, load_f32x16(state + ROW_STATE + i) * splat(inverse))
    for i in range(4 * whole, 4 * value_dim, 4):
        store_f32(out + i, load_f32(state + ROW_STATE + i) * inverse)
