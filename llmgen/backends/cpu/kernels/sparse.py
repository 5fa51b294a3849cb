"""Attention of which each key/value head sees the blocks of keys that were chosen for it (block_choice.py).

Neighbouring blocks make a span of positions, which goes through the passes of any other attention
(attention_rows.py) as the window of its last position. Key blocks of the cache are read where they lie.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llmgen.backends.cpu.kernels.abi import (
    CONTROL_POSITIONS,
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
from llmgen.backends.cpu.kernels.attention_rows import clear_rows, over_block_of, state_size, write_row
from llmgen.backends.cpu.kernels.kv import (
    SCORE_BYTES,
    KVKind,
    key_group_bytes,
    kinds_of,
    value_block_bytes,
)
from llmgen.backends.cpu.kernels.kv.asking import NOTHING
from llmgen.backends.cpu.kernels.kv.queries import put_queries_of
from llmgen.backends.cpu.kernels.layout import KEY_BLOCK, KEY_GROUP
from llmgen.backends.cpu.kernels.simd import load_i64, store_i64
from llmgen.backends.cpu.kernels.sparse_arguments import AttendBlocks

at = places(AttendBlocks)
group_bytes_of, block_bytes_of = inline(key_group_bytes), inline(value_block_bytes)


def _make(keys: KVKind, values: KVKind) -> Any:
    key_bits, key_scales, value_bits, value_scales = keys.bits, keys.block, values.bits, values.block
    over_block, put_queries = over_block_of(keys, values, False), put_queries_of(keys)

    @inline
    def over_span(args, base, h, first, last, q):  # type: ignore[no-untyped-def]
        """The rows of kv head h over the positions first..last - 1 of a sequence's cache."""
        key_dim, value_dim = arg(args, at.key_dim), arg(args, at.value_dim)
        group, scores = arg(args, at.group), arg(args, at.scratch)
        states = scores + SCORE_BYTES
        for r in range(group):
            store_i64(states + r * state_size(value_dim) + 8, last - 1)
        k_bytes = group_bytes_of(key_dim, key_bits, key_scales) * (KEY_BLOCK // KEY_GROUP)
        v_bytes = block_bytes_of(value_dim, value_bits, value_scales)
        cap = np.float32(arg_f64(args, at.cap))
        for block in range(first // KEY_BLOCK, (last - 1) // KEY_BLOCK + 1):
            slot = h * arg(args, at.blocks) + block % arg(args, at.blocks)
            k, v = base + arg(args, at.k_at) + slot * k_bytes, base + arg(args, at.v_at) + slot * v_bytes
            start = block * KEY_BLOCK
            first_key, n_keys = max(0, first - start), min(last - start, KEY_BLOCK)
            over_block(
                group,
                q,
                (k, v, NOTHING),
                scores,
                states,
                start,
                first_key,
                n_keys,
                key_dim,
                value_dim,
                last - first,
                cap,
            )

    def attend(args: int, thread: int, n_threads: int) -> None:
        """Tokens of either role: every (token, kv head) is a unit of work."""
        control, n_kv, group = arg(args, at.control), arg(args, at.n_kv), arg(args, at.group)
        value_dim, span = arg(args, at.value_dim), arg(args, at.block)
        states = arg(args, at.scratch) + SCORE_BYTES
        queries = states + group * state_size(value_dim)
        begin, end = share(control_field(control, CONTROL_TOKENS) * n_kv, thread, n_threads)
        for unit in range(begin, end):
            t, h = unit // n_kv, unit % n_kv
            position = load_i64(control_field(control, CONTROL_POSITIONS) + 8 * t)
            base = load_i64(control_field(control, CONTROL_SEQUENCES) + 8 * t)
            key_dim = arg(args, at.key_dim)
            q = arg(args, at.q) + t * arg(args, at.q_stride) + 4 * h * group * key_dim
            put_queries(q, queries, group, key_dim)
            sinks = arg(args, at.sinks) + 4 * h * group if arg(args, at.sinks) else 0
            clear_rows(states, group, position, value_dim, 0, sinks)
            chosen = arg(args, at.chosen) + t * arg(args, at.chosen_stride) + h * arg(args, at.head_stride)
            n, i = load_i64(chosen), 0
            while i < n:
                first = load_i64(chosen + 8 + 8 * i)
                last = first + 1
                i += 1
                while i < n and load_i64(chosen + 8 + 8 * i) == last:
                    last += 1
                    i += 1
                over_span(args, base, h, first * span, min(last * span, position + 1), queries)
            out = arg(args, at.out) + t * arg(args, at.out_stride) + 4 * h * group * value_dim
            for r in range(group):
                write_row(states + r * state_size(value_dim), out + 4 * r * value_dim, value_dim)

    return step(attend)


def __getattr__(name: str) -> Any:
    """The kernel for two kinds, such as chosen_f16_q8_0, made when it is asked for."""
    role, keys, values = kinds_of(name)
    if role != "chosen":
        raise AttributeError(name)
    return _make(keys, values)
