"""Which keys a token attends to, in layers that choose them (DeepSeek V3.2's lightning indexer).

Each key is scored with queries of the indexer's own, which are cheap, and the k best are chosen.
A score is summed over the heads in order, and of equal scores the earlier key comes first, so
a token's choice depends neither on the threads nor on the other tokens.
"""

from __future__ import annotations

from typing import Any

from numba.core import types

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
from llmgen.backends.cpu.kernels.attention_arguments import ChooseKeys, ScoreKeys
from llmgen.backends.cpu.kernels.functions import relu
from llmgen.backends.cpu.kernels.kv import TABLE, key_group_bytes
from llmgen.backends.cpu.kernels.kv.decode import decode_keys_of
from llmgen.backends.cpu.kernels.layout import KEY_BLOCK, KEY_GROUP
from llmgen.backends.cpu.kernels.simd import (
    fma,
    load_f32,
    load_f32x16,
    load_i64,
    load_u32,
    splat,
    store_f32x16,
    store_i64,
    zero_f32x16,
)

at, choose_at = places(ScoreKeys), places(ChooseKeys)
group_bytes_of = inline(key_group_bytes)


def _make(name: str) -> Any:
    kind = TABLE[name]
    decode, bits, scales = decode_keys_of(kind), kind.bits, kind.block

    @inline
    def score_group(args, t, keys, out):  # type: ignore[no-untyped-def]
        """The scores of KEY_GROUP keys f32 [key_dim][KEY_GROUP]."""
        key_dim = arg(args, at.key_dim)
        q = arg(args, at.q) + t * arg(args, at.q_stride)
        weights = arg(args, at.weights) + t * arg(args, at.weights_stride)
        total = zero_f32x16()
        for head in range(arg(args, at.heads)):
            score = zero_f32x16()
            for d in range(key_dim):
                score = fma(splat(load_f32(q + 4 * d)), load_f32x16(keys + 64 * d), score)
            total = fma(relu(score), splat(load_f32(weights + 4 * head)), total)
            q += 4 * key_dim
        store_f32x16(out, total)

    def scores(args: int, thread: int, n_threads: int) -> None:
        """out[token][key] = the sum over heads of weight * max(0, q . key); every (token, key block) is a unit."""
        control, scratch = arg(args, at.control), arg(args, at.scratch)
        key_dim = arg(args, at.key_dim)
        group_bytes = group_bytes_of(key_dim, bits, scales)
        n_tokens = control_field(control, CONTROL_TOKENS)
        units = 0
        for t in range(n_tokens):
            units += load_i64(control_field(control, CONTROL_POSITIONS) + 8 * t) // KEY_BLOCK + 1
        begin, end = share(units, thread, n_threads)
        unit = 0
        for t in range(n_tokens):
            position = load_i64(control_field(control, CONTROL_POSITIONS) + 8 * t)
            base = load_i64(control_field(control, CONTROL_SEQUENCES) + 8 * t) + arg(args, at.k_at)
            out = arg(args, at.out) + t * arg(args, at.out_stride)
            for block in range(position // KEY_BLOCK + 1):
                if begin <= unit < end:
                    first = block * (KEY_BLOCK // KEY_GROUP)
                    last = min(first + KEY_BLOCK // KEY_GROUP, position // KEY_GROUP + 1)
                    for g in range(first, last):
                        decode(base + g * group_bytes, scratch, key_dim)
                        score_group(args, t, scratch, out + 4 * KEY_GROUP * g)
                unit += 1

    return step(scores)


def __getattr__(name: str) -> Any:
    """The scores over a cache of one kind, such as scores_f16, made when they are asked for."""
    role, _, kind = name.partition("_")
    if role != "scores" or kind not in TABLE:
        raise AttributeError(name)
    return _make(kind)


@inline
def ordered(p):  # type: ignore[no-untyped-def]
    """The bits of the float at p as an integer that grows with it; a NaN is larger than all numbers or smaller."""
    bits = load_u32(p)
    return types.int64(0xFFFFFFFF) - bits if bits >> 31 else bits + types.int64(1 << 31)


@inline
def border(scores, n, k, counts):  # type: ignore[no-untyped-def]
    """The k-th largest of n ordered scores, and how many of those equal to it belong to the k largest.

    counts: int64 [256].  Byte by byte from the highest: of the scores that begin like the one looked for, those
    with each next byte are counted.
    """
    found, wanted = types.int64(0), types.int64(k)
    for shift in range(24, -8, -8):
        for i in range(256):
            store_i64(counts + 8 * i, 0)
        for j in range(n):
            bits = ordered(scores + 4 * j)
            if bits >> (shift + 8) == found:
                place = counts + 8 * (bits >> shift & 255)
                store_i64(place, load_i64(place) + 1)
        byte = 255
        while load_i64(counts + 8 * byte) < wanted:
            wanted -= load_i64(counts + 8 * byte)
            byte -= 1
        found = found << 8 | byte
    return found, wanted


@inline
def choose_best(scores, n, k, out, counts):  # type: ignore[no-untyped-def]
    """How many of n scores are chosen, and the places of the k largest or of all, ascending -> out int64 [1 + k].

    counts: see ``border``.
    """
    store_i64(out, min(n, k))
    place = out + 8
    if n <= k:
        for j in range(n):
            store_i64(place + 8 * j, j)
        return
    least, equals = border(scores, n, k, counts)
    for j in range(n):
        bits = ordered(scores + 4 * j)
        if bits > least or (bits == least and equals > 0):
            if bits == least:
                equals -= 1
            store_i64(place, j)
            place += 8


@step
def choose(args: int, thread: int, n_threads: int) -> None:
    """The k keys with the largest scores, or all that a token sees, in their order; each thread takes whole tokens."""
    control, k = arg(args, choose_at.control), arg(args, choose_at.k)
    begin, end = share(control_field(control, CONTROL_TOKENS), thread, n_threads)
    for t in range(begin, end):
        n = load_i64(control_field(control, CONTROL_POSITIONS) + 8 * t) + 1
        scores = arg(args, choose_at.scores) + t * arg(args, choose_at.scores_stride)
        out = arg(args, choose_at.out) + t * arg(args, choose_at.out_stride)
        choose_best(scores, n, k, out, arg(args, choose_at.scratch))
