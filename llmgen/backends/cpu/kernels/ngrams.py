"""Embeddings of several tokens: which rows of the table belong to a token and those before it (``model.ngrams``)."""

from __future__ import annotations

from numba.core import types

from llmgen.backends.cpu.kernels.abi import (
    CONTROL_SEQUENCES,
    CONTROL_TOKENS,
    arg,
    control_field,
    inline,
    step,
)
from llmgen.backends.cpu.kernels.arguments import places
from llmgen.backends.cpu.kernels.layout import FIELDS
from llmgen.backends.cpu.kernels.ngram_arguments import CONTROL_BYTES, Rows
from llmgen.backends.cpu.kernels.simd import load_i64, store_i64

at = places(Rows)
CONTROL_IDS = 8 * FIELDS["ids"]


@inline
def product(token, multiplier):  # type: ignore[no-untyped-def]
    """The lowest 64 bits of a token's id times a multiplier."""
    return types.uint64(token) * types.uint64(multiplier)


@inline
def earlier(args, known, s, cut):  # type: ignore[no-untyped-def]
    """The token s places before, or the one that stands for it, and whether none before it counts."""
    end, stored = arg(args, at.end), load_i64(known + 8 * (s - 1))
    cut = cut or stored == 0 or stored - 1 == end
    return (end if cut else stored - 1), cut


@step
def rows(args: int, thread: int, n_threads: int) -> None:
    """The rows of all heads for every token, and the tokens that the next run needs."""
    control, block, size = arg(args, at.control), arg(args, at.block), arg(args, at.size)
    if thread:
        return
    heads, room, each = arg(args, at.heads), arg(args, at.room), arg(args, at.heads_each)
    arrays, n_tokens = block + heads * CONTROL_BYTES, control_field(control, CONTROL_TOKENS)
    for head in range(heads):
        store_i64(block + head * CONTROL_BYTES + CONTROL_TOKENS, n_tokens)
        store_i64(block + head * CONTROL_BYTES + CONTROL_IDS, arrays + 8 * head * room)
    for t in range(n_tokens):
        known = load_i64(control_field(control, CONTROL_SEQUENCES) + 8 * t) + arg(args, at.state_at)
        token, cut = load_i64(control_field(control, CONTROL_IDS) + 8 * t), False
        mixed = product(token, load_i64(arg(args, at.multipliers)))
        for s in range(1, size):
            other, cut = earlier(args, known, s, cut)
            mixed = mixed ^ product(other, load_i64(arg(args, at.multipliers) + 8 * s))
            for head in range((s - 1) * each, s * each):
                row = mixed % types.uint64(load_i64(arg(args, at.rows) + 8 * head))
                row = types.int64(row) + load_i64(arg(args, at.offsets) + 8 * head)
                store_i64(arrays + 8 * (head * room + t), row)
        for s in range(size - 2, 0, -1):
            store_i64(known + 8 * s, load_i64(known + 8 * (s - 1)))
        store_i64(known, token + 1)
