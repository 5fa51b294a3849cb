"""Scaled dot-product attention over the cache, in blocks of 64 keys that start at position 0.

A *row* is one query: one head of one token.  Rows of one key/value head (a group of
query heads, times a tile of tokens in a prompt) share the keys they read.  Each row
keeps a running maximum m, sum l and weighted values o (the online softmax of Milakov
and Gimelshein, arXiv:1805.02867, as in flash attention):

    m' = max(m, max s)    l' = l e^(m - m') + sum e^(s - m')    o' = o e^(m - m') + sum e^(s - m') v

Blocks are the same whoever computes them and each row is summed by itself, so the
result depends neither on the threads nor on how a prompt is cut.  Memory is a few
kilobytes a thread: scores of one block.

Row state, f32 unless noted: m, l, int64 position, padding to 64 bytes, then o.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from llmgen.kernels import half
from llmgen.kernels.abi import (
    RUN_CACHES,
    RUN_POSITIONS,
    RUN_TOKENS,
    arg,
    arg_f64,
    inline,
    run_field,
    share,
    step,
)
from llmgen.kernels.arguments import Attend, Combine, places
from llmgen.kernels.dot import LEVEL
from llmgen.kernels.functions import exp, tanh
from llmgen.kernels.layout import KEY_BLOCK, KEY_GROUP, ROW_STATE, SCORE_ROWS, TILE_TOKENS
from llmgen.kernels.simd import (
    I32,
    call_intrinsic,
    f32x16,
    first_lane,
    i16x16,
    i32x16,
    load_f32,
    load_f32x16,
    load_i64,
    max_f32x16,
    maximum,
    pointer,
    splat,
    splat_value,
    store_f32,
    store_f32x16,
    store_i64,
    sum_f32x16,
    ternary,
    zero_f32x16,
)

_FLOOR = np.float32(-1e30)  # the maximum of nothing: finite, so that masked scores (-inf) vanish against it

ROWS = 8 if LEVEL == "avx512vnni" else 6
"""Rows of a full pass: as many as the registers hold."""
assert ROWS <= SCORE_ROWS


def _load_cache(b: Any, address: Any, size: int) -> Any:
    """16 values of the cache as f32x16."""
    if size == 4:
        return b.load(pointer(b, address), align=1, typ=f32x16.llvm)
    bits = b.load(pointer(b, address), align=1, typ=i16x16.llvm)
    return half.extend(b, bits)


def zeros(n: int) -> Any:
    """``zeros()``: n times f32x16."""
    tile = types.UniTuple(f32x16, n)

    @intrinsic
    def function(typing_context: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            return context.make_tuple(b, tile, [ir.Constant(f32x16.llvm, [0.0] * 16)] * n)

        return tile(), generate

    return function


def outer_step(rows: int, vectors: int, size: int) -> Any:
    """``step(acc, a, a_stride, v, v_stride)``: acc[r][i] += a[r] * v[i].

    a: address of one f32 per row, a_stride bytes apart; v: address of ``vectors``
    times 16 cache values, v_stride bytes apart; acc: rows * vectors f32x16.
    """
    tile = types.UniTuple(f32x16, rows * vectors)

    @intrinsic
    def function(typing_context: Any, acc: Any, a: Any, a_stride: Any, v: Any, v_stride: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            packed, scalar, scalar_stride, vector, vector_stride = args
            loaded = []
            for _ in range(vectors):
                loaded.append(_load_cache(b, vector, size))
                vector = b.add(vector, vector_stride)
            out = []
            for r in range(rows):
                s = splat_value(b, b.load(pointer(b, scalar), align=4, typ=ir.FloatType()), f32x16.llvm)
                scalar = b.add(scalar, scalar_stride)
                for i in range(vectors):
                    before = b.extract_value(packed, r * vectors + i)
                    out.append(call_intrinsic(b, "llvm.fma.v16f32", f32x16.llvm, [s, loaded[i], before]))
            return context.make_tuple(b, tile, out)

        return tile(tile, types.intp, types.intp, types.intp, types.intp), generate

    return function


def _kept(outside: float) -> Any:
    """``keep(v, low, high)``: lanes low <= i < high of v; the others become ``outside``."""

    def emit(b: Any, v: Any, low: Any, high: Any) -> Any:
        lanes = ir.Constant(i32x16.llvm, list(range(16)))
        above = b.icmp_signed(">=", lanes, splat_value(b, b.trunc(low, I32), i32x16.llvm))
        below = b.icmp_signed("<", lanes, splat_value(b, b.trunc(high, I32), i32x16.llvm))
        return b.select(b.and_(above, below), v, ir.Constant(f32x16.llvm, [outside] * 16))

    return ternary([f32x16, types.int64, types.int64], f32x16, emit)


keep_scores, keep_weights = _kept(float("-inf")), _kept(0.0)


@inline
def softmax_row(s, state, start, n_groups, window, width, cap):  # type: ignore[no-untyped-def]
    """Scores of one row at s -> weights e^(s - m'), and the row's m, l and o brought up to m'."""
    position = load_i64(state + 8)
    high = min(position + 1 - start, KEY_BLOCK)
    low = max(position + 1 - window - start, 0)
    partly = low > 0 or high < n_groups * KEY_GROUP
    if cap > 0:
        for g in range(n_groups):
            v = load_f32x16(s + 64 * g)
            store_f32x16(s + 64 * g, splat(cap) * tanh(v * splat(np.float32(1.0) / cap)))
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
        v = exp(load_f32x16(s + 64 * g) - splat(m))
        if partly:
            # exp() clips at -87.5: masked keys must weigh exactly nothing
            v = keep_weights(v, low - KEY_GROUP * g, high - KEY_GROUP * g)
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
    return first_lane(exp(splat(before - m)))


def _pass(rows: int, groups: int, vectors: int, size: int) -> Any:
    """Attention of ``rows`` rows over one block, ``groups`` key groups and ``vectors`` value vectors at a time."""
    zero_scores, score_step = zeros(rows * groups), outer_step(rows, groups, size)
    zero_values, value_step = zeros(rows * vectors), outer_step(rows, vectors, size)
    zero_last, last_step = zeros(rows), outer_step(rows, 1, size)

    @inline
    def store_scores(acc, s, g):  # type: ignore[no-untyped-def]
        i = 0
        for v in acc:
            store_f32x16(s + (i // groups) * KEY_BLOCK * 4 + 64 * (g + i % groups), v)
            i += 1

    @inline
    def add_values(acc, o, state_bytes, n):  # type: ignore[no-untyped-def]
        i = 0
        for v in acc:
            p = o + (i // n) * state_bytes + 64 * (i % n)
            store_f32x16(p, load_f32x16(p) + v)
            i += 1

    @inline
    def attend(q, k, v, s, state, state_bytes, start, first_key, n_keys, head_dim, width, window, cap):  # type: ignore[no-untyped-def]
        n_groups = ((n_keys + KEY_GROUP - 1) // KEY_GROUP + groups - 1) // groups * groups
        group_bytes = head_dim * KEY_GROUP * size
        for g in range(0, n_groups, groups):
            acc = zero_scores()
            p = k + g * group_bytes
            for d in range(head_dim):
                acc = score_step(acc, q + 4 * d, 4 * head_dim, p + d * KEY_GROUP * size, group_bytes)
            store_scores(acc, s, g)
        for r in range(rows):
            softmax_row(s + r * KEY_BLOCK * 4, state + r * state_bytes, start, n_groups, window, width, cap)
        i = 0
        while i + vectors * 16 <= width:
            values = zero_values()
            for j in range(first_key, n_keys):
                values = value_step(values, s + 4 * j, KEY_BLOCK * 4, v + (j * width + i) * size, 16 * size)
            add_values(values, state + ROW_STATE + 4 * i, state_bytes, vectors)
            i += vectors * 16
        while i < width:
            last = zero_last()
            for j in range(first_key, n_keys):
                last = last_step(last, s + 4 * j, KEY_BLOCK * 4, v + (j * width + i) * size, 16 * size)
            add_values(last, state + ROW_STATE + 4 * i, state_bytes, 1)
            i += 16

    return attend


at, combine_at = places(Attend), places(Combine)


def _make(size: int) -> tuple[Any, Any]:
    full = _pass(ROWS, 1, 1, size)
    three = _pass(3, 2, 2, size)
    two = _pass(2, 2, 2, size)
    single = _pass(1, 4, 4, size)

    @inline
    def over_block(n, q, k, v, s, state, start, first_key, n_keys, head_dim, window, cap):  # type: ignore[no-untyped-def]
        """n rows over one block: as few passes as possible."""
        width = (head_dim + 15) // 16 * 16
        state_bytes = ROW_STATE + 4 * width
        r = 0
        while r < n:
            qr, st = q + 4 * r * head_dim, state + r * state_bytes
            if n - r >= ROWS:
                full(qr, k, v, s, st, state_bytes, start, first_key, n_keys, head_dim, width, window, cap)
                r += ROWS
            elif n - r >= 3:
                three(qr, k, v, s, st, state_bytes, start, first_key, n_keys, head_dim, width, window, cap)
                r += 3
            elif n - r == 2:
                two(qr, k, v, s, st, state_bytes, start, first_key, n_keys, head_dim, width, window, cap)
                r += 2
            else:
                single(qr, k, v, s, st, state_bytes, start, first_key, n_keys, head_dim, width, window, cap)
                r += 1

    @inline
    def clear_state(state, n, position, width):  # type: ignore[no-untyped-def]
        for r in range(n):
            p = state + r * (ROW_STATE + 4 * width)
            store_f32(p, _FLOOR)
            store_f32(p + 4, np.float32(0.0))
            store_i64(p + 8, position)
            for i in range(0, 4 * width, 64):
                store_f32x16(p + ROW_STATE + i, zero_f32x16())

    def attend_blocks(args: int, thread: int, n_threads: int) -> None:
        """Generated tokens: every (token, kv head, key block) is a unit of work; its row states go to out.

        out: row states [token][kv head][block][group], block 0 the first that the token sees.
        """
        run = arg(args, at.run)
        group = arg(args, at.group)
        head_dim = arg(args, at.head_dim)
        width = (head_dim + 15) // 16 * 16
        window = arg(args, at.window)
        blocks = arg(args, at.blocks)
        cap = np.float32(arg_f64(args, at.cap))
        state_bytes = ROW_STATE + 4 * width
        out = arg(args, at.out)
        out_stride = arg(args, at.out_stride)
        head_stride = out_stride // arg(args, at.n_kv)
        unit = 0
        for t in range(run_field(run, RUN_TOKENS)):
            position = load_i64(run_field(run, RUN_POSITIONS) + 8 * t)
            base = load_i64(run_field(run, RUN_CACHES) + 8 * t)
            first = max(0, position + 1 - window) // KEY_BLOCK
            for h in range(arg(args, at.n_kv)):
                q = arg(args, at.q) + t * arg(args, at.q_stride) + 4 * h * group * head_dim
                for block in range(first, position // KEY_BLOCK + 1):
                    unit += 1
                    if unit % n_threads != thread:
                        continue
                    state = out + t * out_stride + h * head_stride + (block - first) * group * state_bytes
                    clear_state(state, group, position, width)
                    start = block * KEY_BLOCK
                    slot = (h * blocks + block % blocks) * KEY_BLOCK
                    k = base + arg(args, at.k_at) + slot * head_dim * size
                    v = base + arg(args, at.v_at) + slot * width * size
                    n_keys = min(position + 1 - start, KEY_BLOCK)
                    first_key = max(0, position + 1 - window - start)
                    over_block(
                        group,
                        q,
                        k,
                        v,
                        arg(args, at.scratch),
                        state,
                        start,
                        first_key,
                        n_keys,
                        head_dim,
                        window,
                        cap,
                    )

    def attend_tiles(args: int, thread: int, n_threads: int) -> None:
        """Prompt tokens: a unit of work is a tile of eight tokens times one kv head, over all its blocks."""
        run = arg(args, at.run)
        group = arg(args, at.group)
        head_dim = arg(args, at.head_dim)
        width = (head_dim + 15) // 16 * 16
        window = arg(args, at.window)
        blocks = arg(args, at.blocks)
        cap = np.float32(arg_f64(args, at.cap))
        state_bytes = ROW_STATE + 4 * width
        n_tokens = run_field(run, RUN_TOKENS)
        scores = arg(args, at.scratch)
        queries = scores + ROWS * KEY_BLOCK * 4
        state = queries + TILE_TOKENS * group * head_dim * 4
        base = load_i64(run_field(run, RUN_CACHES))
        unit = 0
        for t0 in range(0, n_tokens, TILE_TOKENS):
            count = min(TILE_TOKENS, n_tokens - t0)
            for h in range(arg(args, at.n_kv)):
                unit += 1
                if unit % n_threads != thread:
                    continue
                low = load_i64(run_field(run, RUN_POSITIONS) + 8 * t0)
                high = load_i64(run_field(run, RUN_POSITIONS) + 8 * (t0 + count - 1))
                for t in range(count):
                    q = arg(args, at.q) + (t0 + t) * arg(args, at.q_stride) + 4 * h * group * head_dim
                    copy_floats(q, queries + 4 * t * group * head_dim, group * head_dim)
                    clear_state(state + t * group * state_bytes, group, low + t, width)
                for block in range(max(0, low + 1 - window) // KEY_BLOCK, high // KEY_BLOCK + 1):
                    start = block * KEY_BLOCK
                    slot = (h * blocks + block % blocks) * KEY_BLOCK
                    k = base + arg(args, at.k_at) + slot * head_dim * size
                    v = base + arg(args, at.v_at) + slot * width * size
                    n_keys = min(high + 1 - start, KEY_BLOCK)
                    first_key = max(0, low + 1 - window - start)
                    over_block(
                        count * group,
                        queries,
                        k,
                        v,
                        scores,
                        state,
                        start,
                        first_key,
                        n_keys,
                        head_dim,
                        window,
                        cap,
                    )
                for t in range(count):
                    for g in range(group):
                        st = state + (t * group + g) * state_bytes
                        out = (
                            arg(args, at.out)
                            + (t0 + t) * arg(args, at.out_stride)
                            + 4 * (h * group + g) * head_dim
                        )
                        write_row(st, out, head_dim)

    return step(attend_blocks), step(attend_tiles)


@inline
def copy_floats(source, out, n):  # type: ignore[no-untyped-def]
    whole = n // 16 * 16
    for i in range(0, 4 * whole, 64):
        store_f32x16(out + i, load_f32x16(source + i))
    for i in range(4 * whole, 4 * n, 4):
        store_f32(out + i, load_f32(source + i))


@inline
def write_row(state, out, head_dim):  # type: ignore[no-untyped-def]
    """out = o / l."""
    inverse = np.float32(1.0) / load_f32(state + 4)
    whole = head_dim // 16 * 16
    for i in range(0, 4 * whole, 64):
        store_f32x16(out + i, load_f32x16(state + ROW_STATE + i) * splat(inverse))
    for i in range(4 * whole, 4 * head_dim, 4):
        store_f32(out + i, load_f32(state + ROW_STATE + i) * inverse)


@step
def combine(args: int, thread: int, n_threads: int) -> None:
    """Row states of all blocks, in order -> out; a unit of work is one query head of one token."""
    run = arg(args, combine_at.run)
    group = arg(args, combine_at.group)
    head_dim = arg(args, combine_at.head_dim)
    width = (head_dim + 15) // 16 * 16
    state_bytes = ROW_STATE + 4 * width
    heads = arg(args, combine_at.n_kv) * group
    head_stride = arg(args, combine_at.states_stride) // arg(args, combine_at.n_kv)
    start, stop = share(run_field(run, RUN_TOKENS) * heads, thread, n_threads)
    for unit in range(start, stop):
        t, head = unit // heads, unit % heads
        position = load_i64(run_field(run, RUN_POSITIONS) + 8 * t)
        first = max(0, position + 1 - arg(args, combine_at.window)) // KEY_BLOCK
        total = (
            arg(args, combine_at.states)
            + t * arg(args, combine_at.states_stride)
            + head // group * head_stride
        )
        total += head % group * state_bytes
        state = total
        for _ in range(first, position // KEY_BLOCK):
            state += group * state_bytes
            merge_row(state, total, width)
        out = arg(args, combine_at.out) + t * arg(args, combine_at.out_stride) + 4 * head * head_dim
        write_row(total, out, head_dim)


@inline
def merge_row(state, total, width):  # type: ignore[no-untyped-def]
    """Add a block's row state to the running one."""
    before, here = load_f32(total), load_f32(state)
    # the larger of both; a NaN in either stays
    m = before if before > here or before != before else here
    old, new = scale_change(before, m), scale_change(here, m)
    store_f32(total, m)
    store_f32(total + 4, load_f32(total + 4) * old + load_f32(state + 4) * new)
    for i in range(ROW_STATE, ROW_STATE + 4 * width, 64):
        store_f32x16(total + i, load_f32x16(total + i) * splat(old) + load_f32x16(state + i) * splat(new))


blocks_f16, tiles_f16 = _make(2)
blocks_f32, tiles_f32 = _make(4)
