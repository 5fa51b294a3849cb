"""Attention over a latent cache, whose content is key and value at once (DeepSeek V2, arXiv:2405.04434).

All heads of a token see the same keys: the content [content_dim] and behind it the rotated
position part [position_dim].  So a block of the cache is decoded into the scratch once for LATENT_HEADS
heads, as float32 keys and values in the layout of kernels/kv, and goes through the same
passes as that of any other layer (attention_rows.py).

A query is its content part and its position part, one behind the other.  Scratch: SCORE_BYTES for
scores, keys f32 [groups][key_dim][KEY_GROUP] and LATENT_TURNED floats, values f32 [KEY_BLOCK][width], queries
f32 [rows][key_dim] of a tile of tokens and LATENT_HEADS heads, and behind them the states of these rows.
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
from llmgen.backends.cpu.kernels.arguments import places
from llmgen.backends.cpu.kernels.attention_arguments import AttendLatent
from llmgen.backends.cpu.kernels.attention_reach import (
    BLOCK_COST,
    all_finite,
    first_block,
    keys_seen,
    same_cache,
)
from llmgen.backends.cpu.kernels.attention_rows import (
    clear_rows,
    over_block_of,
    state_size,
    width_of,
    write_row,
)
from llmgen.backends.cpu.kernels.kv import (
    SCORE_BYTES,
    TABLE,
    KVKind,
    key_group_bytes,
    kinds_of,
    value_block_bytes,
)
from llmgen.backends.cpu.kernels.kv.asking import NOTHING
from llmgen.backends.cpu.kernels.kv.decode import decode_keys_of, decode_values_of
from llmgen.backends.cpu.kernels.layout import (
    KEY_BLOCK,
    KEY_GROUP,
    LATENT_HEADS,
    LATENT_TURNED,
    TILE_TOKENS,
)
from llmgen.backends.cpu.kernels.pointwise import copy_floats
from llmgen.backends.cpu.kernels.simd import load_f32, load_i8x32, load_i64, store_f32, store_i64
from llmgen.backends.cpu.kernels.transpose import store_transposed_64

at = places(AttendLatent)
group_bytes_of, block_bytes_of = inline(key_group_bytes), inline(value_block_bytes)


@inline
def turn_values(values, keys, n_groups, width, content_dim, key_dim):  # type: ignore[no-untyped-def]
    """values f32 [positions][width] -> the first dimensions of keys f32 [groups][key_dim][KEY_GROUP].

    Eight dimensions at a time, so up to seven behind the content are written, too.
    """
    row = 4 * width
    for g in range(n_groups):
        for half in range(2):
            p = values + (KEY_GROUP * g + 8 * half) * row
            out = keys + g * key_dim * KEY_GROUP * 4 + 32 * half
            for d in range(0, content_dim, 8):
                q = p + 4 * d
                rows = (
                    load_i8x32(q),
                    load_i8x32(q + row),
                    load_i8x32(q + 2 * row),
                    load_i8x32(q + 3 * row),
                    load_i8x32(q + 4 * row),
                    load_i8x32(q + 5 * row),
                    load_i8x32(q + 6 * row),
                    load_i8x32(q + 7 * row),
                )
                store_transposed_64(out + 64 * d, rows)


@inline
def put_query(content, position, content_dim, position_dim, out):  # type: ignore[no-untyped-def]
    """Both parts of a query, one behind the other."""
    copy_floats(content, out, content_dim)
    copy_floats(position, out + 4 * content_dim, position_dim)


@inline
def last_seen(args, t):  # type: ignore[no-untyped-def]
    """The last position that token t sees."""
    return load_i64(control_field(arg(args, at.control), arg(args, at.last)) + 8 * t)


@inline
def blocks_seen(args, t):  # type: ignore[no-untyped-def]
    """The first and the last key block that token t sees."""
    position = last_seen(args, t)
    return first_block(position, arg(args, at.window)), position // KEY_BLOCK


def _make(role: str, keys: KVKind, values: KVKind) -> Any:
    """The step for generated tokens ("blocks") or prompt tokens ("tiles"); keys: the kind of the position parts,
    values: of the contents."""
    decode_position, decode_content = decode_keys_of(keys), decode_values_of(values)
    key_bits, key_scales, value_bits, value_scales = keys.bits, keys.block, values.bits, values.block
    over_block = over_block_of(TABLE["f32"], TABLE["f32"], False)

    @inline
    def decode(args, base, block, n_keys, keys, values):  # type: ignore[no-untyped-def]
        """A block of a sequence's cache -> float32 keys and values of its first n_keys positions, in whole groups."""
        content_dim, position_dim = arg(args, at.value_dim), arg(args, at.key_dim)
        width = width_of(content_dim)
        key_dim = content_dim + position_dim
        n_groups = (n_keys + KEY_GROUP - 1) // KEY_GROUP
        slot = block % arg(args, at.blocks)
        content = base + arg(args, at.v_at) + slot * block_bytes_of(content_dim, value_bits, value_scales)
        decode_content(content, values, n_groups * KEY_GROUP, width)
        turn_values(values, keys, n_groups, width, content_dim, key_dim)
        group_bytes = group_bytes_of(position_dim, key_bits, key_scales)
        position = base + arg(args, at.k_at) + slot * (KEY_BLOCK // KEY_GROUP) * group_bytes
        for g in range(n_groups):
            out = keys + (g * key_dim + content_dim) * KEY_GROUP * 4
            decode_position(position + g * group_bytes, out, position_dim)

    @inline
    def attend(args, block, low, high, n, places):  # type: ignore[no-untyped-def]
        """n rows that see up to positions low..high over a decoded block."""
        scores, keys, values, queries, state = places
        window, value_dim, start = arg(args, at.window), arg(args, at.value_dim), block * KEY_BLOCK
        first_key, _ = keys_seen(low, start, window)
        _, n_keys = keys_seen(high, start, window)
        key_dim = value_dim + arg(args, at.key_dim)
        where = (keys, values, NOTHING)
        cap = np.float32(arg_f64(args, at.cap))
        over_block(
            n, queries, where, scores, state, start, first_key, n_keys, key_dim, value_dim, window, cap
        )

    @inline
    def over_tile(args, base, block, t0, count, n, places):  # type: ignore[no-untyped-def]
        """``count`` tokens of a sequence, n rows each, over a block of its cache.

        Each attends by itself where a value that not all of them see is infinite or no number, see ``attention.py``.
        """
        scores, keys, values, queries, state = places
        window, value_dim = arg(args, at.window), arg(args, at.value_dim)
        low, high, start = last_seen(args, t0), last_seen(args, t0 + count - 1), block * KEY_BLOCK
        n_keys = min(high + 1 - start, KEY_BLOCK)
        decode(args, base, block, n_keys, keys, values)
        together = count
        if keys_seen(low, start, window) != keys_seen(high, start, window):
            together = count if all_finite(values, n_keys, value_dim, width_of(value_dim)) else 1
        query_row, state_row = 4 * n * (value_dim + arg(args, at.key_dim)), n * state_size(value_dim)
        for t in range(0, count, together):
            low, high = last_seen(args, t0 + t), last_seen(args, t0 + t + together - 1)
            if first_block(low, window) <= block <= high // KEY_BLOCK:
                here = (scores, keys, values, queries + t * query_row, state + t * state_row)
                attend(args, block, low, high, together * n, here)

    @inline
    def rooms(args):  # type: ignore[no-untyped-def]
        """The parts of the scratch: scores, keys, values, queries."""
        width = width_of(arg(args, at.value_dim))
        key_dim = arg(args, at.value_dim) + arg(args, at.key_dim)
        scores = arg(args, at.scratch)
        keys = scores + SCORE_BYTES
        values = keys + 4 * (KEY_BLOCK * key_dim + LATENT_TURNED)
        return scores, keys, values, values + 4 * KEY_BLOCK * width, key_dim

    @inline
    def take(args, t, head, n, queries):  # type: ignore[no-untyped-def]
        """The queries of n heads of token t from ``head`` on."""
        content_dim, position_dim = arg(args, at.value_dim), arg(args, at.key_dim)
        content = arg(args, at.q) + t * arg(args, at.q_stride) + 4 * head * content_dim
        position = arg(args, at.q_position) + t * arg(args, at.q_position_stride) + 4 * head * position_dim
        row = 4 * (content_dim + position_dim)
        for i in range(n):
            put_query(
                content + 4 * i * content_dim,
                position + 4 * i * position_dim,
                content_dim,
                position_dim,
                queries + i * row,
            )

    def attend_blocks(args: int, thread: int, n_threads: int) -> None:
        """Generated tokens: every (token, key block, LATENT_HEADS heads) is a unit of work; its row states go to out.

        out: row states [token][block][head], block 0 the first that the token sees.  A thread takes units
        that follow each other, about as many keys as the others.
        """
        control = arg(args, at.control)
        heads, value_dim = arg(args, at.group), arg(args, at.value_dim)
        state_bytes = state_size(value_dim)
        parts = (heads + LATENT_HEADS - 1) // LATENT_HEADS
        n_tokens = control_field(control, CONTROL_TOKENS)
        scores, keys, values, queries, _ = rooms(args)
        work = 0
        for t in range(n_tokens):
            first, last = blocks_seen(args, t)
            work += parts * (last_seen(args, t) + 1 - first * KEY_BLOCK + BLOCK_COST * (last + 1 - first))
        begin, end = share(work, thread, n_threads)
        done = 0
        for t in range(n_tokens):
            position = last_seen(args, t)
            base = load_i64(control_field(control, CONTROL_SEQUENCES) + 8 * t)
            first, last = blocks_seen(args, t)
            for block in range(first, last + 1):
                for head in range(0, heads, LATENT_HEADS):
                    here = done
                    done += min(position + 1 - block * KEY_BLOCK, KEY_BLOCK) + BLOCK_COST
                    if here < begin or here >= end:
                        continue
                    n = min(LATENT_HEADS, heads - head)
                    take(args, t, head, n, queries)
                    state = arg(args, at.out) + t * arg(args, at.out_stride)
                    state += ((block - first) * heads + head) * state_bytes
                    sinks = arg(args, at.sinks) + 4 * head if arg(args, at.sinks) and block == first else 0
                    clear_rows(state, n, position, value_dim, 0, sinks)
                    over_tile(args, base, block, t, 1, n, (scores, keys, values, queries, state))

    def attend_tiles(args: int, thread: int, n_threads: int) -> None:
        """Prompt tokens: a unit of work is a tile of eight tokens times LATENT_HEADS heads, over all its blocks.

        The tokens of a sequence lie side by side; a tile may hold the end of one and the beginning of others.
        """
        control = arg(args, at.control)
        heads, value_dim = arg(args, at.group), arg(args, at.value_dim)
        state_bytes = state_size(value_dim)
        n_tokens = control_field(control, CONTROL_TOKENS)
        scores, keys, values, queries, key_dim = rooms(args)
        state = queries + 4 * TILE_TOKENS * LATENT_HEADS * key_dim
        unit = 0
        for tile in range(0, n_tokens, TILE_TOKENS):
            for head in range(0, heads, LATENT_HEADS):
                unit += 1
                if unit % n_threads != thread:
                    continue
                n = min(LATENT_HEADS, heads - head)
                sinks = arg(args, at.sinks) + 4 * head if arg(args, at.sinks) else 0
                t0 = tile
                while t0 < min(tile + TILE_TOKENS, n_tokens):
                    count = same_cache(control, t0, min(tile + TILE_TOKENS, n_tokens))
                    base = load_i64(control_field(control, CONTROL_SEQUENCES) + 8 * t0)
                    first, last = blocks_seen(args, t0)[0], blocks_seen(args, t0 + count - 1)[1]
                    for t in range(count):
                        take(args, t0 + t, head, n, queries + 4 * t * n * key_dim)
                        clear_rows(
                            state + t * n * state_bytes, n, last_seen(args, t0 + t), value_dim, 0, sinks
                        )
                    for block in range(first, last + 1):
                        places = (scores, keys, values, queries, state)
                        over_tile(args, base, block, t0, count, n, places)
                    for t in range(count):
                        out = arg(args, at.out) + (t0 + t) * arg(args, at.out_stride) + 4 * head * value_dim
                        for i in range(n):
                            write_row(state + (t * n + i) * state_bytes, out + 4 * i * value_dim, value_dim)
                    t0 += count

    @inline
    def put_block(args, base, block, content, position):  # type: ignore[no-untyped-def]
        """A whole block of a sequence's cache -> contents f32 [KEY_BLOCK][width], position parts as in the cache."""
        content_dim, position_dim = arg(args, at.value_dim), arg(args, at.key_dim)
        slot = block % arg(args, at.blocks)
        at_block = base + arg(args, at.v_at) + slot * block_bytes_of(content_dim, value_bits, value_scales)
        decode_content(at_block, content, KEY_BLOCK, width_of(content_dim))
        group_bytes = group_bytes_of(position_dim, key_bits, key_scales)
        groups = base + arg(args, at.k_at) + slot * (KEY_BLOCK // KEY_GROUP) * group_bytes
        for g in range(KEY_BLOCK // KEY_GROUP):
            decode_position(
                groups + g * group_bytes, position + g * position_dim * KEY_GROUP * 4, position_dim
            )

    @inline
    def put_key(args, i, content, position, j, keys, values):  # type: ignore[no-untyped-def]
        """Key i of a block becomes the j-th of those that are attended to together."""
        content_dim, position_dim = arg(args, at.value_dim), arg(args, at.key_dim)
        row = 4 * width_of(content_dim)
        copy_floats(content + i * row, values + j * row, width_of(content_dim))
        p = position + (i // KEY_GROUP * position_dim * KEY_GROUP + i % KEY_GROUP) * 4
        q = (
            keys
            + ((j // KEY_GROUP * (content_dim + position_dim) + content_dim) * KEY_GROUP + j % KEY_GROUP) * 4
        )
        for d in range(position_dim):
            store_f32(q + 64 * d, load_f32(p + 64 * d))

    @inline
    def attend_together(args, n_keys, n, places):  # type: ignore[no-untyped-def]
        """n rows of one token over n_keys keys that were chosen, of which it sees all."""
        scores, keys, values, queries, state = places
        value_dim = arg(args, at.value_dim)
        key_dim = value_dim + arg(args, at.key_dim)
        for r in range(n):
            store_i64(state + r * state_size(value_dim) + 8, n_keys - 1)
        where = (keys, values, NOTHING)
        cap = np.float32(arg_f64(args, at.cap))
        over_block(n, queries, where, scores, state, 0, 0, n_keys, key_dim, value_dim, KEY_BLOCK, cap)

    def attend_chosen(args: int, thread: int, n_threads: int) -> None:
        """Tokens of either role that attend to chosen keys: every (token, LATENT_HEADS heads) is a unit of work.

        The keys are gathered KEY_BLOCK at a time, in their order.
        """
        control = arg(args, at.control)
        heads, value_dim = arg(args, at.group), arg(args, at.value_dim)
        state_bytes, width = state_size(value_dim), width_of(value_dim)
        scores, keys, values, queries, key_dim = rooms(args)
        content = queries + 4 * LATENT_HEADS * key_dim
        position = content + 4 * KEY_BLOCK * width
        turned = position + 4 * KEY_BLOCK * arg(args, at.key_dim)
        state = turned + 4 * (KEY_BLOCK * value_dim + LATENT_TURNED)
        parts = (heads + LATENT_HEADS - 1) // LATENT_HEADS
        begin, end = share(control_field(control, CONTROL_TOKENS) * parts, thread, n_threads)
        for unit in range(begin, end):
            t, head = unit // parts, unit % parts * LATENT_HEADS
            n = min(LATENT_HEADS, heads - head)
            base = load_i64(control_field(control, CONTROL_SEQUENCES) + 8 * t)
            chosen = arg(args, at.chosen) + t * arg(args, at.chosen_stride)
            take(args, t, head, n, queries)
            sinks = arg(args, at.sinks) + 4 * head if arg(args, at.sinks) else 0
            clear_rows(state, n, 0, value_dim, 0, sinks)
            places = (scores, keys, values, queries, state)
            block, count, n_chosen = -1, 0, load_i64(chosen)
            for i in range(n_chosen):
                key = load_i64(chosen + 8 + 8 * i)
                if key // KEY_BLOCK != block:
                    block = key // KEY_BLOCK
                    put_block(args, base, block, content, position)
                put_key(args, key % KEY_BLOCK, content, position, count, keys, values)
                count += 1
                if count == KEY_BLOCK or i + 1 == n_chosen:
                    n_groups = (count + KEY_GROUP - 1) // KEY_GROUP
                    turn_values(values, turned, n_groups, width, value_dim, value_dim)
                    for g in range(n_groups):
                        source = turned + 64 * g * value_dim
                        copy_floats(source, keys + 64 * g * key_dim, KEY_GROUP * value_dim)
                    attend_together(args, count, n, places)
                    count = 0
            out = arg(args, at.out) + t * arg(args, at.out_stride) + 4 * head * value_dim
            for r in range(n):
                write_row(state + r * state_bytes, out + 4 * r * value_dim, value_dim)

    if role == "chosen":
        return step(attend_chosen)
    return step(attend_blocks if role == "blocks" else attend_tiles)


def __getattr__(name: str) -> Any:
    """The kernel for a role and two kinds, such as blocks_f16_q8_0, made when it is asked for."""
    return _make(*kinds_of(name))
