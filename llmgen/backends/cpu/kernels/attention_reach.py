"""Which keys the tokens of a run see, in blocks of 64, and how much work these are.

A token sees the keys up to a last position: its own, or the end of its run where a model has no causal order.  A
sliding window takes away the oldest of them; a local window, for generated tokens, those between the
first block and the last keys.  ``args`` is the address of a step's arguments, in the order of the table ``Attend``.
"""

from __future__ import annotations

import numpy as np

from llmgen.backends.cpu.kernels.abi import CONTROL_SEQUENCES, arg, control_field, inline
from llmgen.backends.cpu.kernels.arguments import places
from llmgen.backends.cpu.kernels.attention_arguments import Attend
from llmgen.backends.cpu.kernels.decode_plan import LOCAL, UNBOUNDED
from llmgen.backends.cpu.kernels.kv import VECTOR
from llmgen.backends.cpu.kernels.kv.rows import load_first
from llmgen.backends.cpu.kernels.layout import KEY_BLOCK
from llmgen.backends.cpu.kernels.simd import load_i64, sum_f32x16, zero_f32x16
from llmgen.backends.cpu.kernels.softmax import first_seen

at = places(Attend)
BLOCK_COST = 8
"""What a key block costs beside its keys, in keys."""


@inline
def same_cache(control, first, last):  # type: ignore[no-untyped-def]
    """How many of the run's tokens from ``first`` on, before ``last``, are of one sequence."""
    sequences = control_field(control, CONTROL_SEQUENCES)
    t = first + 1
    while t < last and load_i64(sequences + 8 * t) == load_i64(sequences + 8 * first):
        t += 1
    return t - first


@inline
def last_seen(args, t):  # type: ignore[no-untyped-def]
    """The last position that token t sees."""
    return load_i64(control_field(arg(args, at.control), arg(args, at.last)) + 8 * t)


@inline
def first_block(position, window):  # type: ignore[no-untyped-def]
    """The first key block that a token sees; position: the last that it sees."""
    return first_seen(position, window) // KEY_BLOCK


@inline
def keys_seen(position, start, window):  # type: ignore[no-untyped-def]
    """The range of the keys from position ``start`` on, a block of them, that a token sees."""
    return max(0, first_seen(position, window) - start), min(position + 1 - start, KEY_BLOCK)


@inline
def local_of(control, window):  # type: ignore[no-untyped-def]
    """Of how many keys a generated token sees the last, besides the first block; 0: the layer's window says it all."""
    return control_field(control, LOCAL) if window == UNBOUNDED else 0


@inline
def local_window(args):  # type: ignore[no-untyped-def]
    """``local_of`` this layer."""
    return local_of(arg(args, at.control), arg(args, at.window))


@inline
def next_block(block, position, local):  # type: ignore[no-untyped-def]
    """The key block that a token sees after another; a local window leaves blocks behind the first one out."""
    if local and block == 0:
        return max(1, (position + 1 - local) // KEY_BLOCK)
    return block + 1


@inline
def tokens_that_see(args, t0, count, block, window, local):  # type: ignore[no-untyped-def]
    """Of ``count`` tokens of a sequence, the range of those that see a block; their positions follow each other."""
    begins, ends = 0, count
    while block > last_seen(args, t0 + begins) // KEY_BLOCK:
        begins += 1
    while block < first_block(last_seen(args, t0 + ends - 1), window) or (
        0 < block < next_block(0, last_seen(args, t0 + ends - 1), local)
    ):
        ends -= 1
    return begins, ends


@inline
def head_work(args, t0, count):  # type: ignore[no-untyped-def]
    """The work of a kv head for ``count`` tokens of a sequence: keys, and what their blocks cost beside."""
    low, high = last_seen(args, t0), last_seen(args, t0 + count - 1)
    local = local_window(args)
    block = first_block(low, arg(args, at.window))
    work = 0
    while block <= high // KEY_BLOCK:
        work += count * (min(high + 1 - block * KEY_BLOCK, KEY_BLOCK) + BLOCK_COST)
        block = next_block(block, low, local)
    return work


@inline
def all_finite(values, n, dim, width):  # type: ignore[no-untyped-def]
    """Whether n values f32 [n][width], of which dim count, are finite: infinity minus infinity is no number."""
    even, odd = zero_f32x16(), zero_f32x16()
    for j in range(n):
        for i in range(0, dim, VECTOR):
            v = load_first(values + 4 * (j * width + i), dim - i)
            even, odd = odd, even + (v - v)  # two sums, since one would wait for each addition
    return sum_f32x16(even + odd) == np.float32(0.0)
