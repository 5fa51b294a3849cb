"""Scaled dot-product attention over the cache, in blocks of 64 keys that start at position 0.

Rows (attention_rows.py) of one key/value head, which are a group of query heads, times a
tile of tokens in a prompt, share the keys they read.  The blocks are fixed, so the result
depends neither on the threads nor on how a prompt is cut into runs.

Scratch: SCORE_BYTES for the scores of SCORE_ROWS rows; for a prompt behind them the queries of a unit,
f32 [tokens][group][key_dim], and the states of these rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llmgen.backends.cpu.kernels.abi import (
    CONTROL_SEQUENCES,
    CONTROL_TOKENS,
    arg,
    arg_f64,
    control_field,
    inline,
    share,
    step,
)
from llmgen.backends.cpu.kernels.arguments import Attend, Combine, places
from llmgen.backends.cpu.kernels.attention_rows import (
    clear_rows,
    first_seen,
    merge_row,
    over_block_of,
    state_size,
    write_row,
)
from llmgen.backends.cpu.kernels.kv import (
    SCORE_BYTES,
    KVKind,
    key_group_bytes,
    kinds_of,
    most_tokens,
    value_block_bytes,
)
from llmgen.backends.cpu.kernels.layout import KEY_BLOCK, KEY_GROUP, TILE_TOKENS
from llmgen.backends.cpu.kernels.pointwise import copy_floats
from llmgen.backends.cpu.kernels.simd import load_i64

at, combine_at = places(Attend), places(Combine)
group_bytes_of, block_bytes_of = inline(key_group_bytes), inline(value_block_bytes)


@inline
def first_block(position, window):  # type: ignore[no-untyped-def]
    """The first key block that a token sees; position: the last that it sees."""
    return first_seen(position, window) // KEY_BLOCK


UNIT = 8
"""What a block costs beside its keys, in keys."""
UNITS = 4
"""Units of a prompt for each thread, at least: then none waits long for the last."""
unit_tokens = inline(most_tokens)


@inline
def head_work(position, window):  # type: ignore[no-untyped-def]
    """Keys that a token's kv head reads, and what their blocks cost beside."""
    first = first_block(position, window)
    return position + 1 - first * KEY_BLOCK + UNIT * (position // KEY_BLOCK + 1 - first)


@inline
def same_cache(control, first, last):  # type: ignore[no-untyped-def]
    """How many of the run's tokens from ``first`` on, before ``last``, are of one sequence."""
    sequences = control_field(control, CONTROL_SEQUENCES)
    t = first + 1
    while t < last and load_i64(sequences + 8 * t) == load_i64(sequences + 8 * first):
        t += 1
    return t - first


@inline
def tokens_together(most, n_tokens, n_kv, n_threads):  # type: ignore[no-untyped-def]
    """Tokens of a unit of a prompt, in whole tiles: the most, unless threads would have nothing to do."""
    tiles = most // TILE_TOKENS
    while (
        tiles > 1 and (n_tokens + tiles * TILE_TOKENS - 1) // (tiles * TILE_TOKENS) * n_kv < UNITS * n_threads
    ):
        tiles //= 2
    return tiles * TILE_TOKENS


def _make(role: str, keys: KVKind, values: KVKind) -> Any:
    """The step for generated tokens ("blocks") or prompt tokens ("tiles") over a cache of these kinds."""
    key_bits, key_scales, value_bits, value_scales = keys.bits, keys.block, values.bits, values.block

    @inline
    def keys_values(args, base, h, block):  # type: ignore[no-untyped-def]
        """Where the keys and the values of a block of kv head h lie; base: the sequence's cache."""
        blocks = arg(args, at.blocks)
        slot = h * blocks + block % blocks
        k_bytes = group_bytes_of(arg(args, at.key_dim), key_bits, key_scales) * (KEY_BLOCK // KEY_GROUP)
        v_bytes = block_bytes_of(arg(args, at.value_dim), value_bits, value_scales)
        return base + arg(args, at.k_at) + slot * k_bytes, base + arg(args, at.v_at) + slot * v_bytes

    @inline
    def last_seen(args, t):  # type: ignore[no-untyped-def]
        """The last position that token t sees."""
        return load_i64(control_field(arg(args, at.control), arg(args, at.last)) + 8 * t)

    @inline
    def of_heads(args, i, first):  # type: ignore[no-untyped-def]
        """The address of the i-th argument's numbers for the query heads from ``first`` on; 0 where there are none."""
        numbers = arg(args, i)
        return numbers + 4 * first if numbers else 0

    @inline
    def following(args, t, h, block, first, last):  # type: ignore[no-untyped-def]
        """The keys and values read after a block of token t, which sees first..last; behind the last, these again."""
        control = arg(args, at.control)
        base = load_i64(control_field(control, CONTROL_SEQUENCES) + 8 * t)
        if block < last:
            block += 1
        elif h + 1 < arg(args, at.n_kv):
            h += 1
            block = first
        elif t + 1 < control_field(control, CONTROL_TOKENS):
            base = load_i64(control_field(control, CONTROL_SEQUENCES) + 8 * (t + 1))
            h = 0
            block = first_block(last_seen(args, t + 1), arg(args, at.window))
        return keys_values(args, base, h, block)

    over_block = over_block_of(keys, values, role == "blocks")

    @inline
    def attend(args, where, block, low, high, n, q, scores, state):  # type: ignore[no-untyped-def]
        """n rows that see up to positions low..high over a block of keys; where: see ``over_block``."""
        key_dim, value_dim = arg(args, at.key_dim), arg(args, at.value_dim)
        window = arg(args, at.window)
        start = block * KEY_BLOCK
        first_key = max(0, first_seen(low, window) - start)
        n_keys = min(high + 1 - start, KEY_BLOCK)
        cap = np.float32(arg_f64(args, at.cap))
        over_block(n, q, where, scores, state, start, first_key, n_keys, key_dim, value_dim, window, cap)

    def attend_blocks(args: int, thread: int, n_threads: int) -> None:
        """Generated tokens: every (token, kv head, key block) is a unit of work; its row states go to out.

        out: row states [token][kv head][block][group], block 0 the first that the token sees.  A thread takes
        units that follow each other, about as many keys as the others.
        """
        control = arg(args, at.control)
        group = arg(args, at.group)
        key_dim, value_dim = arg(args, at.key_dim), arg(args, at.value_dim)
        n_kv = arg(args, at.n_kv)
        window = arg(args, at.window)
        state_bytes = state_size(value_dim)
        out_stride = arg(args, at.out_stride)
        head_stride = out_stride // n_kv
        n_tokens = control_field(control, CONTROL_TOKENS)
        work = 0
        for t in range(n_tokens):
            work += n_kv * head_work(last_seen(args, t), window)
        begin, end = share(work, thread, n_threads)
        done = 0
        for t in range(n_tokens):
            position = last_seen(args, t)
            base = load_i64(control_field(control, CONTROL_SEQUENCES) + 8 * t)
            first, last = first_block(position, window), position // KEY_BLOCK
            for h in range(n_kv):
                q = arg(args, at.q) + t * arg(args, at.q_stride) + 4 * h * group * key_dim
                slopes, sinks = of_heads(args, at.slopes, h * group), of_heads(args, at.sinks, h * group)
                states = arg(args, at.out) + t * out_stride + h * head_stride
                for block in range(first, last + 1):
                    here = done
                    done += min(position + 1 - block * KEY_BLOCK, KEY_BLOCK) + UNIT
                    if here < begin or here >= end:
                        continue
                    k, v = keys_values(args, base, h, block)
                    k_next, v_next = following(args, t, h, block, first, last)
                    where = (k, v, k_next, v_next)
                    state = states + (block - first) * group * state_bytes
                    clear_rows(state, group, position, value_dim, slopes, sinks if block == first else 0)
                    scores = arg(args, at.scratch)
                    attend(args, where, block, position, position, group, q, scores, state)

    @inline
    def over_blocks(args, t0, count, h, queries, states):  # type: ignore[no-untyped-def]
        """``count`` tokens of one sequence over the blocks they see: a block is read once for all tiles."""
        group = arg(args, at.group)
        row_bytes, state_bytes = (
            4 * group * arg(args, at.key_dim),
            group * state_size(arg(args, at.value_dim)),
        )
        window, scores = arg(args, at.window), arg(args, at.scratch)
        base = load_i64(control_field(arg(args, at.control), CONTROL_SEQUENCES) + 8 * t0)
        last_block = last_seen(args, t0 + count - 1) // KEY_BLOCK
        for block in range(first_block(last_seen(args, t0), window), last_block + 1):
            k, v = keys_values(args, base, h, block)
            where = (k, v, k, v)
            for t in range(0, count, TILE_TOKENS):
                n = min(TILE_TOKENS, count - t)
                low, high = last_seen(args, t0 + t), last_seen(args, t0 + t + n - 1)
                if first_block(low, window) <= block <= high // KEY_BLOCK:
                    q, state = queries + t * row_bytes, states + t * state_bytes
                    attend(args, where, block, low, high, n * group, q, scores, state)

    def attend_tiles(args: int, thread: int, n_threads: int) -> None:
        """Prompt tokens: a unit of work is a few tiles of eight tokens times one kv head, over all its blocks.

        The tokens of a sequence lie side by side; a unit may hold the end of one and the beginning of others.
        """
        control = arg(args, at.control)
        group = arg(args, at.group)
        key_dim, value_dim = arg(args, at.key_dim), arg(args, at.value_dim)
        state_bytes = state_size(value_dim)
        n_tokens = control_field(control, CONTROL_TOKENS)
        queries = arg(args, at.scratch) + SCORE_BYTES
        most = unit_tokens(group)
        states = queries + most * group * key_dim * 4
        tokens = tokens_together(most, n_tokens, arg(args, at.n_kv), n_threads)
        unit = 0
        for first in range(0, n_tokens, tokens):
            for h in range(arg(args, at.n_kv)):
                unit += 1
                if unit % n_threads != thread:
                    continue
                slopes, sinks = of_heads(args, at.slopes, h * group), of_heads(args, at.sinks, h * group)
                t0 = first
                while t0 < min(first + tokens, n_tokens):
                    count = same_cache(control, t0, min(first + tokens, n_tokens))
                    for t in range(count):
                        q = arg(args, at.q) + (t0 + t) * arg(args, at.q_stride) + 4 * h * group * key_dim
                        copy_floats(q, queries + 4 * t * group * key_dim, group * key_dim)
                        position = last_seen(args, t0 + t)
                        clear_rows(
                            states + t * group * state_bytes, group, position, value_dim, slopes, sinks
                        )
                    over_blocks(args, t0, count, h, queries, states)
                    for t in range(count):
                        out = arg(args, at.out) + (t0 + t) * arg(args, at.out_stride)
                        out += 4 * h * group * value_dim
                        for g in range(group):
                            row = states + (t * group + g) * state_bytes
                            write_row(row, out + 4 * g * value_dim, value_dim)
                    t0 += count

    return step(attend_blocks if role == "blocks" else attend_tiles)


def __getattr__(name: str) -> Any:
    """The kernel for a role and two kinds, such as blocks_q8_0_f16, made when it is asked for."""
    return _make(*kinds_of(name))


@step
def combine(args: int, thread: int, n_threads: int) -> None:
    """Row states of all blocks, in order -> out; a unit of work is one query head of one token."""
    control = arg(args, combine_at.control)
    group = arg(args, combine_at.group)
    value_dim = arg(args, combine_at.value_dim)
    state_bytes = state_size(value_dim)
    heads = arg(args, combine_at.n_kv) * group
    head_stride = arg(args, combine_at.states_stride) // arg(args, combine_at.n_kv)
    start, stop = share(control_field(control, CONTROL_TOKENS) * heads, thread, n_threads)
    for unit in range(start, stop):
        t, head = unit // heads, unit % heads
        position = load_i64(control_field(control, arg(args, combine_at.last)) + 8 * t)
        first = first_block(position, arg(args, combine_at.window))
        total = (
            arg(args, combine_at.states)
            + t * arg(args, combine_at.states_stride)
            + head // group * head_stride
        )
        total += head % group * state_bytes
        state = total
        for _ in range(first, position // KEY_BLOCK):
            state += group * state_bytes
            merge_row(state, total, value_dim)
        out = arg(args, combine_at.out) + t * arg(args, combine_at.out_stride) + 4 * head * value_dim
        write_row(total, out, value_dim)
