"""Scaled dot-product attention over the cache, in blocks of 64 keys that start at position 0.

Rows (attention_rows.py) of one key/value head, which are a group of query heads, times a
tile of tokens in a prompt, share the keys they read.  The blocks are fixed, so the result
depends neither on the threads nor on how a prompt is cut into runs.

A prompt meets a block many times, so it is expanded to float32 once for all rows of a unit.

Scratch: SCORE_BYTES for scores; for a prompt a block of keys and values as float32; behind them the queries of a
unit [tokens][group] as kv/queries.py leaves them, and the states of these rows, for
generated tokens twice: of a block, and merged.
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
from llmgen.backends.cpu.kernels.attention_arguments import Attend, Combine
from llmgen.backends.cpu.kernels.attention_reach import (
    BLOCK_COST,
    all_finite,
    first_block,
    head_work,
    keys_seen,
    last_seen,
    local_of,
    local_window,
    next_block,
    same_cache,
    tokens_that_see,
)
from llmgen.backends.cpu.kernels.attention_rows import (
    clear_rows,
    merge_row,
    over_block_of,
    state_size,
    width_of,
    write_row,
)
from llmgen.backends.cpu.kernels.decode_plan import MERGED, STREAMS, TOGETHER, most_together
from llmgen.backends.cpu.kernels.kv import (
    SCORE_BYTES,
    TABLE,
    KVKind,
    key_group_bytes,
    kinds_of,
    line_bytes,
    most_tokens,
    query_bytes,
    value_block_bytes,
)
from llmgen.backends.cpu.kernels.kv.asking import NOTHING, upcoming
from llmgen.backends.cpu.kernels.kv.decode import keys_as_floats, values_as_floats
from llmgen.backends.cpu.kernels.kv.queries import put_queries_of
from llmgen.backends.cpu.kernels.layout import KEY_BLOCK, KEY_GROUP, TILE_TOKENS
from llmgen.backends.cpu.kernels.pointwise import copy_floats
from llmgen.backends.cpu.kernels.simd import load_i64, store_i64
from llmgen.backends.cpu.kernels.softmax import first_seen

at, combine_at = places(Attend), places(Combine)
group_bytes_of, block_bytes_of = inline(key_group_bytes), inline(value_block_bytes)
UNITS_PER_THREAD = 4
"""Units of a prompt for each thread, at least: then none waits long for the last."""
unit_tokens, most_of, query_bytes_of = inline(most_tokens), inline(most_together), inline(query_bytes)
whole_lines = inline(line_bytes)


@inline
def tokens_together(most, n_tokens, n_kv, n_threads):  # type: ignore[no-untyped-def]
    """Tokens of a unit of a prompt, in whole tiles: the most, unless threads would have nothing to do."""
    tiles = most // TILE_TOKENS
    while (
        tiles > 1
        and (n_tokens + tiles * TILE_TOKENS - 1) // (tiles * TILE_TOKENS) * n_kv
        < UNITS_PER_THREAD * n_threads
    ):
        tiles //= 2
    return tiles * TILE_TOKENS


def _make(role: str, keys: KVKind, values: KVKind) -> Any:
    """The step for generated tokens ("blocks") or prompt tokens ("tiles") over a cache of these kinds."""
    key_bits, key_scales, value_bits, value_scales = keys.bits, keys.block, values.bits, values.block

    @inline
    def block_bytes(args):  # type: ignore[no-untyped-def]
        """Bytes of a block's keys and of its values."""
        k_bytes = group_bytes_of(arg(args, at.key_dim), key_bits, key_scales) * (KEY_BLOCK // KEY_GROUP)
        return k_bytes, block_bytes_of(arg(args, at.value_dim), value_bits, value_scales)

    @inline
    def keys_values(args, base, h, block):  # type: ignore[no-untyped-def]
        """Where the keys and the values of a block of kv head h lie; base: the sequence's cache."""
        blocks = arg(args, at.blocks)
        slot = h * blocks + block % blocks
        k_bytes, v_bytes = block_bytes(args)
        return base + arg(args, at.k_at) + slot * k_bytes, base + arg(args, at.v_at) + slot * v_bytes

    @inline
    def of_heads(args, i, first):  # type: ignore[no-untyped-def]
        """The address of the i-th argument's numbers for the query heads from ``first`` on; 0 where there are none."""
        numbers = arg(args, i)
        return numbers + 4 * first if numbers else 0

    @inline
    def following(args, t0, count, h, block, last):  # type: ignore[no-untyped-def]
        """The keys and values that are read next by ``count`` tokens from t0 on.

        block: the next block of this head; behind the last, the next head's or token's first is read.
        """
        control = arg(args, at.control)
        t = t0
        if block > last:
            if h + 1 < arg(args, at.n_kv):
                h += 1
            elif t0 + count < control_field(control, CONTROL_TOKENS):
                t = t0 + count
                h = 0
            else:
                return keys_values(args, load_i64(control_field(control, CONTROL_SEQUENCES) + 8 * t), h, last)
            block = first_block(last_seen(args, t), arg(args, at.window))
        return keys_values(args, load_i64(control_field(control, CONTROL_SEQUENCES) + 8 * t), h, block)

    if role == "tiles":
        floats_of_keys, floats_of_values = keys_as_floats(keys), values_as_floats(values)
        over_block = over_block_of(TABLE["f32"], TABLE["f32"], False, many=True)
        put_queries, query_scales = put_queries_of(TABLE["f32"]), 0
    else:
        over_block = over_block_of(keys, values, True)
        put_queries, query_scales = put_queries_of(keys), key_scales

    @inline
    def row_bytes_of(args):  # type: ignore[no-untyped-def]
        """Bytes of a token's queries of one kv head."""
        return arg(args, at.group) * query_bytes_of(arg(args, at.key_dim), query_scales)

    @inline
    def attend(args, where, block, low, high, n, q, scores, state, window):  # type: ignore[no-untyped-def]
        """n rows that see up to positions low..high over a block of keys; where: see ``over_block``."""
        key_dim, value_dim = arg(args, at.key_dim), arg(args, at.value_dim)
        start = block * KEY_BLOCK
        first_key, _ = keys_seen(low, start, window)
        _, n_keys = keys_seen(high, start, window)
        cap = np.float32(arg_f64(args, at.cap))
        over_block(n, q, where, scores, state, start, first_key, n_keys, key_dim, value_dim, window, cap)

    @inline
    def keep_states(args, block, t, h, states, totals):  # type: ignore[no-untyped-def]
        """A token's row states of a block: merged with those before, if this thread has these, else put into out."""
        group, value_dim = arg(args, at.group), arg(args, at.value_dim)
        nbytes = group * state_size(value_dim)
        first = first_block(last_seen(args, t), arg(args, at.window))
        if block > first and load_i64(totals + MERGED) == 0:
            out = arg(args, at.out) + t * arg(args, at.out_stride)
            out += h * (arg(args, at.out_stride) // arg(args, at.n_kv)) + (block - first) * nbytes
            copy_floats(states, out, nbytes // 4)
            return
        for i in range(0, nbytes, state_size(value_dim)):
            if block == first:
                copy_floats(states + i, totals + i, state_size(value_dim) // 4)
            else:
                merge_row(states + i, totals + i, value_dim)
            store_i64(totals + i + MERGED, block + 1)

    @inline
    def attend_tokens(args, where, block, t0, begins, ends, window, queries, states):  # type: ignore[no-untyped-def]
        """Of a sequence's tokens from t0 on those from begins to ends over a block of keys.

        Where they do not see the same keys, each attends by itself: a weight of 0 would not hide another's
        infinite value.
        """
        group, start, n = arg(args, at.group), block * KEY_BLOCK, ends - begins
        low, high = last_seen(args, t0 + begins), last_seen(args, t0 + ends - 1)
        together = n if keys_seen(low, start, window) == keys_seen(high, start, window) else 1
        for t in range(begins, ends, max(together, 1)):
            q = queries + t * row_bytes_of(args)
            state = states + t * group * state_size(arg(args, at.value_dim))
            low, high = last_seen(args, t0 + t), last_seen(args, t0 + t + together - 1)
            attend(args, where, block, low, high, together * group, q, arg(args, at.scratch), state, window)

    @inline
    def attend_together(args, t0, count, h, begin, end, done):  # type: ignore[no-untyped-def]
        """The key blocks of kv head h that are this thread's, for ``count`` tokens of one sequence.

        done: the work before the head's.  Returns that behind it.
        """
        group, key_dim, value_dim = arg(args, at.group), arg(args, at.key_dim), arg(args, at.value_dim)
        window, local = arg(args, at.window), local_window(args)
        row_bytes, state_bytes = row_bytes_of(args), group * state_size(value_dim)
        queries = arg(args, at.scratch) + SCORE_BYTES
        states = queries + whole_lines(count * row_bytes)
        totals = states + count * state_bytes
        slopes, sinks = of_heads(args, at.slopes, h * group), of_heads(args, at.sinks, h * group)
        base = load_i64(control_field(arg(args, at.control), CONTROL_SEQUENCES) + 8 * t0)
        low, high = last_seen(args, t0), last_seen(args, t0 + count - 1)
        block, last = first_block(low, window), high // KEY_BLOCK
        mine = False
        while block <= last:
            here = done
            done += count * (min(high + 1 - block * KEY_BLOCK, KEY_BLOCK) + BLOCK_COST)
            after = next_block(block, low, local)
            if begin <= here < end:
                if not mine:
                    mine = True
                    for t in range(count):
                        q = arg(args, at.q) + (t0 + t) * arg(args, at.q_stride) + 4 * h * group * key_dim
                        put_queries(q, queries + t * row_bytes, group, key_dim)
                        store_i64(totals + t * state_bytes + MERGED, 0)
                k, v = keys_values(args, base, h, block)
                k_next, v_next = following(args, t0, count, h, after, last)
                k_bytes, v_bytes = block_bytes(args)
                streams = control_field(arg(args, at.control), STREAMS)
                where = (k, v, upcoming(k_next, v_next, k_bytes, v_bytes, streams))
                begins, ends = tokens_that_see(args, t0, count, block, window, local)
                for t in range(begins, ends):
                    position = last_seen(args, t0 + t)
                    sink = sinks if block == first_block(position, window) else 0
                    clear_rows(states + t * state_bytes, group, position, value_dim, slopes, sink)
                seen = local if local and block else window
                attend_tokens(args, where, block, t0, begins, ends, seen, queries, states)
                for t in range(begins, ends):
                    keep_states(args, block, t0 + t, h, states + t * state_bytes, totals + t * state_bytes)
            block = after
        if mine:
            for t in range(count):
                if load_i64(totals + t * state_bytes + MERGED):
                    out = arg(args, at.out) + (t0 + t) * arg(args, at.out_stride)
                    out += h * (arg(args, at.out_stride) // arg(args, at.n_kv))
                    copy_floats(totals + t * state_bytes, out, state_bytes // 4)
        return done

    def attend_blocks(args: int, thread: int, n_threads: int) -> None:
        """Generated tokens: every (tokens of a sequence, kv head, key block) is a unit of work.

        A thread takes units that follow each other, about as many keys as the others.  It merges the
        row states of the blocks from a head's first on, in their order, as far as they are its own; those of its
        other blocks go to out: row states [token][kv head][block][group], block 0 the first that the token
        sees.  ``combine`` goes on with the merging.
        """
        control = arg(args, at.control)
        n_tokens, n_kv = control_field(control, CONTROL_TOKENS), arg(args, at.n_kv)
        most = min(control_field(control, TOGETHER), most_of(arg(args, at.group)))
        work = 0
        t = 0
        while t < n_tokens:
            count = same_cache(control, t, min(t + most, n_tokens))
            work += n_kv * head_work(args, t, count)
            t += count
        begin, end = share(work, thread, n_threads)
        done = 0
        t = 0
        while t < n_tokens:
            count = same_cache(control, t, min(t + most, n_tokens))
            for h in range(n_kv):
                done = attend_together(args, t, count, h, begin, end, done)
            t += count

    @inline
    def float_block(args, base, h, block, n_keys):  # type: ignore[no-untyped-def]
        """Where the keys and the first n_keys values of a block of kv head h lie as float32."""
        k, v = keys_values(args, base, h, block)
        key_dim, value_dim = arg(args, at.key_dim), arg(args, at.value_dim)
        room = arg(args, at.scratch) + SCORE_BYTES
        k = floats_of_keys(k, room, key_dim)
        return k, floats_of_values(v, room + 4 * KEY_BLOCK * key_dim, n_keys, width_of(value_dim))

    @inline
    def over_blocks(args, t0, count, h, queries, states):  # type: ignore[no-untyped-def]
        """``count`` tokens of one sequence over the blocks they see, which are read once for all of them.

        Where not all see a whole block, tiles that see nothing of it are left out, and each token attends by itself if
        a value is infinite or no number: the weight 0 of a key that a token does not see would not hide it.
        """
        group, window, value_dim = arg(args, at.group), arg(args, at.window), arg(args, at.value_dim)
        row_bytes, state_bytes = row_bytes_of(args), group * state_size(value_dim)
        base = load_i64(control_field(arg(args, at.control), CONTROL_SEQUENCES) + 8 * t0)
        begin, end = last_seen(args, t0), last_seen(args, t0 + count - 1)
        for block in range(first_block(begin, window), end // KEY_BLOCK + 1):
            start = block * KEY_BLOCK
            n_keys = min(end + 1 - start, KEY_BLOCK)
            k, v = float_block(args, base, h, block, n_keys)
            together = count
            if begin + 1 - start < KEY_BLOCK or first_seen(end, window) > start:
                together = TILE_TOKENS if all_finite(v, n_keys, value_dim, width_of(value_dim)) else 1
            for t in range(0, count, together):
                n = min(together, count - t)
                low, high = last_seen(args, t0 + t), last_seen(args, t0 + t + n - 1)
                if first_block(low, window) <= block <= high // KEY_BLOCK:
                    q, state = queries + t * row_bytes, states + t * state_bytes
                    scores = arg(args, at.scratch)
                    attend(args, (k, v, NOTHING), block, low, high, n * group, q, scores, state, window)

    def attend_tiles(args: int, thread: int, n_threads: int) -> None:
        """Prompt tokens: a unit of work is a few tiles of eight tokens times one kv head, over all its blocks.

        The tokens of a sequence lie side by side; a unit may hold the end of one and the beginning of others.
        """
        control = arg(args, at.control)
        group = arg(args, at.group)
        key_dim, value_dim = arg(args, at.key_dim), arg(args, at.value_dim)
        state_bytes = state_size(value_dim)
        n_tokens = control_field(control, CONTROL_TOKENS)
        queries = arg(args, at.scratch) + SCORE_BYTES + 4 * KEY_BLOCK * (key_dim + width_of(value_dim))
        most = unit_tokens(group)
        row_bytes = row_bytes_of(args)
        states = queries + whole_lines(most * row_bytes)
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
                        put_queries(q, queries + t * row_bytes, group, key_dim)
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
    """Row states of all blocks, in order -> out; a unit of work is one query head of one token.

    Those of a head's first blocks are merged already, if one thread had them.
    """
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
        window = arg(args, combine_at.window)
        first, local = first_block(position, window), local_of(control, window)
        total = (
            arg(args, combine_at.states)
            + t * arg(args, combine_at.states_stride)
            + head // group * head_stride
        )
        total += head % group * state_bytes
        block, merged = first, load_i64(total + MERGED)
        while block <= position // KEY_BLOCK:
            if block > first and block >= merged:
                merge_row(total + (block - first) * group * state_bytes, total, value_dim)
            block = next_block(block, position, local)
        out = arg(args, combine_at.out) + t * arg(args, combine_at.out_stride) + 4 * head * value_dim
        write_row(total, out, value_dim)
