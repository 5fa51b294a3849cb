"""Which blocks of keys each key/value head attends to (MiniMax M3's sparse attention).

A block's score is the largest product of a query of the indexer's and the keys of the block. The last blocks
before a token always come first. A choice depends neither on the threads nor on the other tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llmgen.backends.cpu.kernels.abi import (
    CONTROL_POSITIONS,
    CONTROL_SEQUENCES,
    CONTROL_TOKENS,
    arg,
    control_field,
    inline,
    share,
    step,
)
from llmgen.backends.cpu.kernels.arguments import places
from llmgen.backends.cpu.kernels.indexer import choose_best
from llmgen.backends.cpu.kernels.kv import TABLE, key_group_bytes
from llmgen.backends.cpu.kernels.kv.decode import decode_keys_of
from llmgen.backends.cpu.kernels.layout import KEY_GROUP
from llmgen.backends.cpu.kernels.simd import (
    first_lane,
    fma,
    load_f32,
    load_f32x16,
    load_i64,
    max_f32x16,
    maximum,
    splat,
    store_f32,
    zero_f32x16,
)
from llmgen.backends.cpu.kernels.softmax import keep_scores
from llmgen.backends.cpu.kernels.sparse_arguments import ChooseBlocks, ScoreBlocks

at, choose_at = places(ScoreBlocks), places(ChooseBlocks)
group_bytes_of = inline(key_group_bytes)
_INFINITY = np.float32(np.inf)


def _make(name: str) -> Any:
    kind = TABLE[name]
    decode, bits, scales = decode_keys_of(kind), kind.bits, kind.block

    @inline
    def over_group(args, q, out, low, high):  # type: ignore[no-untyped-def]
        """The keys low..high - 1 of a decoded group raise the scores of a block, one for each head."""
        key_dim, keys = arg(args, at.key_dim), arg(args, at.scratch)
        for head in range(arg(args, at.heads)):
            products = zero_f32x16()
            for d in range(key_dim):
                products = fma(
                    splat(load_f32(q + 4 * (head * key_dim + d))), load_f32x16(keys + 64 * d), products
                )
            best = out + head * arg(args, at.head_stride)
            here = max_f32x16(keep_scores(products, low, high))
            store_f32(best, first_lane(maximum(splat(load_f32(best)), splat(here))))

    def scores(args: int, thread: int, n_threads: int) -> None:
        """out[token][head][block] = the largest q . key of the keys that the token sees; every (token, block) is
        a unit of work."""
        control, block, key_dim = arg(args, at.control), arg(args, at.block), arg(args, at.key_dim)
        group_bytes = group_bytes_of(key_dim, bits, scales)
        n_tokens = control_field(control, CONTROL_TOKENS)
        units = 0
        for t in range(n_tokens):
            units += load_i64(control_field(control, CONTROL_POSITIONS) + 8 * t) // block + 1
        begin, end = share(units, thread, n_threads)
        unit = 0
        for t in range(n_tokens):
            position = load_i64(control_field(control, CONTROL_POSITIONS) + 8 * t)
            base = load_i64(control_field(control, CONTROL_SEQUENCES) + 8 * t) + arg(args, at.k_at)
            q = arg(args, at.q) + t * arg(args, at.q_stride)
            for number in range(position // block + 1):
                unit += 1
                if not begin <= unit - 1 < end:
                    continue
                out = arg(args, at.out) + t * arg(args, at.out_stride) + 4 * number
                for head in range(arg(args, at.heads)):
                    store_f32(out + head * arg(args, at.head_stride), -_INFINITY)
                first, last = number * block, min((number + 1) * block, position + 1)
                for g in range(first // KEY_GROUP, (last - 1) // KEY_GROUP + 1):
                    decode(base + g * group_bytes, arg(args, at.scratch), key_dim)
                    over_group(args, q, out, first - KEY_GROUP * g, last - KEY_GROUP * g)

    return step(scores)


def __getattr__(name: str) -> Any:
    """The scores over a cache of one kind, such as scores_f16, made when they are asked for."""
    role, _, kind = name.partition("_")
    if role != "scores" or kind not in TABLE:
        raise AttributeError(name)
    return _make(kind)


@step
def choose(args: int, thread: int, n_threads: int) -> None:
    """The last blocks, and those with the largest scores, k in all or as many as a token sees, in their order.

    Every (token, head) is a unit of work.
    """
    control, heads = arg(args, choose_at.control), arg(args, choose_at.heads)
    k, local = arg(args, choose_at.k), arg(args, choose_at.local)
    begin, end = share(control_field(control, CONTROL_TOKENS) * heads, thread, n_threads)
    for unit in range(begin, end):
        t, head = unit // heads, unit % heads
        position = load_i64(control_field(control, CONTROL_POSITIONS) + 8 * t)
        n = position // arg(args, choose_at.block) + 1
        scores = arg(args, choose_at.scores) + t * arg(args, choose_at.scores_stride)
        scores += head * arg(args, choose_at.head_stride)
        for number in range(max(0, n - local), n):
            store_f32(scores + 4 * number, _INFINITY)
        out = arg(args, choose_at.out) + t * arg(args, choose_at.out_stride)
        choose_best(
            scores, n, k, out + head * arg(args, choose_at.out_head_stride), arg(args, choose_at.scratch)
        )
