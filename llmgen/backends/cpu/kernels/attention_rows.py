"""One row of attention: scores, softmax, weighted values, block by block.

A *row* is one query: one head of one token.  It keeps a running maximum m, sum l and
weighted values o (the online softmax of Milakov and Gimelshein, arXiv:1805.02867, as in
flash attention); a block of scores s and values v makes of them

    m' = max(m, max s)    l' = l e^(m - m') + sum e^(s - m')    o' = o e^(m - m') + sum e^(s - m') v

Several rows are taken at once only to read the keys and values once; each is summed by
itself, so its result does not depend on the others.

A row may lose score with distance (ALiBi, arXiv:2108.12409): its slope times the positions between.
It may have a sink (arXiv:2309.17453), a score without a value: m and l begin with it.

Row state, ``state_size`` bytes: f32 m, f32 l, int64 last position that it sees, f32 slope, at CHANGE an f32, at MERGED
an int64, padding to ROW_STATE bytes, f32 o [width].  Scores: f32 [KEY_BLOCK] a row, one row behind the other.  Sizes
are in bytes, but key_dim, value_dim and width (value_dim rounded up to whole vectors) count values.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llmgen.backends.cpu.kernels.abi import inline
from llmgen.backends.cpu.kernels.decode_plan import MERGED
from llmgen.backends.cpu.kernels.dot import AVX512
from llmgen.backends.cpu.kernels.kv import KVKind, query_bytes
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
    load_f32,
    load_f32x16,
    splat,
    store_f32,
    store_f32x16,
    store_i64,
    zero_f32x16,
)
from llmgen.backends.cpu.kernels.softmax import FLOOR, scale_change, softmax_of

ROWS, VECTORS = (8, 2) if AVX512 else (6, 1)
"""Rows of a full pass, and how many vectors of keys or values they meet at once: as many as the registers hold."""
assert ROWS <= SCORE_ROWS


width_of, state_size = inline(value_width), inline(row_state_bytes)
query_bytes_of = inline(query_bytes)


def _passes(rows: int, groups: int, vectors: int, keys: KVKind, values: KVKind, asks: bool) -> Any:
    """Attention of ``rows`` rows at a time over a block, ``groups`` key groups and ``vectors`` value vectors at once.

    asks: whether it asks for the next block's keys and values while it reads those of this one.
    """
    together = rows_of_values(values, rows)
    take_scores, softmax = scores_of(keys, rows, groups, asks), softmax_of(rows)
    add_values = values_of(values, together, max(vectors, parts_of(values)), asks)
    others = values_of(values, together, max(vectors, parts_of(values)), False)
    scales = keys.block
    # scaled kinds use half of the room for scores themselves
    most = rows if keys.block or values.block else 2 * rows

    @inline
    def attend(first, n, q, where, s, state, start, first_key, n_keys, key_dim, value_dim, window, cap):  # type: ignore[no-untyped-def]
        """The rows from ``first`` on, as long as there are ``rows``; returns the first that is left.

        Twice as many go through a block together: while the softmax of one half waits for its maxima, the processor
        works on the scores of the other.
        """
        k, v, coming = where
        width, state_bytes = width_of(value_dim), state_size(value_dim)
        n_groups = ((n_keys + KEY_GROUP - 1) // KEY_GROUP + groups - 1) // groups * groups
        scaled = s + SCORE_ROWS * KEY_BLOCK * 4
        while n - first >= rows:
            count = min((n - first) // rows * rows, most)
            states = state + first * state_bytes
            for r in range(0, count, rows):
                here = s + 4 * KEY_BLOCK * r
                take_scores(
                    q + (first + r) * query_bytes_of(key_dim, scales), k, coming, here, n_groups, key_dim
                )
            for r in range(0, count, rows):
                here, those = s + 4 * KEY_BLOCK * r, states + r * state_bytes
                softmax(here, those, state_bytes, start, n_groups, window, width, cap)
            o = states + ROW_STATE
            add_values(s, scaled, v, coming, o, state_bytes, first_key, n_keys, width)
            for r in range(together, count, together):
                here = s + 4 * KEY_BLOCK * r
                others(here, scaled, v, coming, o + r * state_bytes, state_bytes, first_key, n_keys, width)
            first += count
        return first

    return attend


def over_block_of(keys: KVKind, values: KVKind, asks: bool, many: bool = False) -> Any:
    """``over_block`` for a cache of these kinds; asks: see ``_passes``.

    many: there are dozens of rows, so the few behind the last full pass may take one each, which is less to compile.
    """
    full = _passes(ROWS, VECTORS, VECTORS, keys, values, asks)
    single = _passes(1, 4, 4, keys, values, asks)

    @inline
    def over_block(n, q, where, s, state, start, first_key, n_keys, key_dim, value_dim, window, cap):  # type: ignore[no-untyped-def]
        """n rows over one block, in as few passes as possible.

        q: n queries, see kv/queries.py; s: room for SCORE_BYTES; state: n row states.  The block begins at position
        ``start``; keys from n_keys on are seen by no row, nor those before first_key.
        where: the block's keys and values, as kernels/kv says, and the block that is read after it
        (kv/asking.py).
        """
        r = full(0, n, q, where, s, state, start, first_key, n_keys, key_dim, value_dim, window, cap)
        single(r, n, q, where, s, state, start, first_key, n_keys, key_dim, value_dim, window, cap)

    if many:
        return over_block
    wide = 4 if AVX512 else 2  # groups and vectors at once: few rows leave registers for them
    three = _passes(3, wide, wide, keys, values, asks)
    two = _passes(2, wide, wide, keys, values, asks)

    @inline
    def over_few(n, q, where, s, state, start, first_key, n_keys, key_dim, value_dim, window, cap):  # type: ignore[no-untyped-def]
        """``over_block`` with passes for three rows and for two."""
        r = full(0, n, q, where, s, state, start, first_key, n_keys, key_dim, value_dim, window, cap)
        r = three(r, n, q, where, s, state, start, first_key, n_keys, key_dim, value_dim, window, cap)
        r = two(r, n, q, where, s, state, start, first_key, n_keys, key_dim, value_dim, window, cap)
        single(r, n, q, where, s, state, start, first_key, n_keys, key_dim, value_dim, window, cap)

    return over_few


@inline
def clear_rows(state, n, position, value_dim, slopes, sinks):  # type: ignore[no-untyped-def]
    """The states of n rows of a token before their first block; slopes, sinks: f32 [n], or 0 for none."""
    for r in range(n):
        p = state + r * state_size(value_dim)
        store_f32(p, load_f32(sinks + 4 * r) if sinks else FLOOR)
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
