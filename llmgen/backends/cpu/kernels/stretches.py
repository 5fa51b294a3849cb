"""Summaries of stretches of tokens (DeepSeek V4): weighted sums over a stretch, and which of them a token sees.

A sum is carried from token to token as the largest score so far, the sum of e^(score - largest), and the values
weighted with that.  Tokens are taken one after another, so the sums do not depend on how they were cut into
runs or on what else is in a run.  Threads share out columns.
"""

from __future__ import annotations

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
from llmgen.backends.cpu.kernels.functions import exp, one
from llmgen.backends.cpu.kernels.simd import (
    fma,
    load_f32x16,
    load_i64,
    maximum,
    store_f32x16,
    store_i64,
    zero_f32x16,
)
from llmgen.backends.cpu.kernels.stretch_arguments import (
    ARRAYS,
    FIRST,
    LAST,
    NUMBER,
    Count,
    Seen,
    Sums,
    Tokens,
)

count_at, at, seen_at, tokens_at = places(Count), places(Sums), places(Seen), places(Tokens)


@step
def count(args: int, thread: int, n_threads: int) -> None:
    """Fill the stretch block; every thread does so for itself."""
    control, every, block = arg(args, count_at.control), arg(args, count_at.every), arg(args, count_at.block)
    firsts = block + ARRAYS
    numbers = firsts + 8 * arg(args, count_at.room)
    sequences = numbers + 8 * arg(args, count_at.room)
    lasts = sequences + 8 * arg(args, count_at.room)
    n_tokens, row = control_field(control, CONTROL_TOKENS), 0
    for t in range(n_tokens):
        position = load_i64(control_field(control, CONTROL_POSITIONS) + 8 * t)
        whole = (position + 1) // every
        store_i64(lasts + 8 * t, whole - 1)
        if whole * every == position + 1:
            store_i64(firsts + 8 * row, position + 1 - every)
            store_i64(numbers + 8 * row, whole - 1)
            store_i64(sequences + 8 * row, load_i64(control_field(control, CONTROL_SEQUENCES) + 8 * t))
            row += 1
    store_i64(block + FIRST + CONTROL_TOKENS, row)
    store_i64(block + FIRST + CONTROL_POSITIONS, firsts)
    store_i64(block + FIRST + CONTROL_SEQUENCES, sequences)
    store_i64(block + NUMBER + CONTROL_TOKENS, row)
    store_i64(block + NUMBER + CONTROL_POSITIONS, numbers)
    store_i64(block + NUMBER + CONTROL_SEQUENCES, sequences)
    store_i64(block + LAST + CONTROL_TOKENS, n_tokens)
    store_i64(block + LAST + CONTROL_POSITIONS, lasts)
    store_i64(block + LAST + CONTROL_SEQUENCES, control_field(control, CONTROL_SEQUENCES))


@inline
def add_to(sums, row, begins, value, score):  # type: ignore[no-untyped-def]
    """Bring a token's values and scores into the sums of a stretch."""
    if begins:
        store_f32x16(sums, score)
        store_f32x16(sums + row, one())
        store_f32x16(sums + 2 * row, value)
        return
    before = load_f32x16(sums)
    largest = maximum(before, score)
    old, new = exp(before - largest), exp(score - largest)
    store_f32x16(sums, largest)
    store_f32x16(sums + row, fma(load_f32x16(sums + row), old, new))
    store_f32x16(sums + 2 * row, fma(load_f32x16(sums + 2 * row), old, value * new))


@inline
def mean(sums, row):  # type: ignore[no-untyped-def]
    """The weighted mean of the tokens of a stretch."""
    return load_f32x16(sums + 2 * row) / load_f32x16(sums + row)


@inline
def mean_of_both(sums, others, row):  # type: ignore[no-untyped-def]
    """The same of the tokens of two stretches."""
    largest = maximum(load_f32x16(sums), load_f32x16(others))
    a, b = exp(load_f32x16(sums) - largest), exp(load_f32x16(others) - largest)
    weights = fma(load_f32x16(sums + row), a, load_f32x16(others + row) * b)
    return fma(load_f32x16(sums + 2 * row), a, load_f32x16(others + 2 * row) * b) / weights


@inline
def score_of(scores, stride, offsets, t, i, place):  # type: ignore[no-untyped-def]
    """The scores of token t in the 16 columns from byte i on; scores and offsets may be missing (0)."""
    score = zero_f32x16()
    if scores:
        score = load_f32x16(scores + t * stride + i)
    if offsets:
        score = score + load_f32x16(offsets + place + i)
    return score


@step
def sums(args: int, thread: int, n_threads: int) -> None:
    """Columns first..last (whole vectors) of the sums; a row of out for each stretch that ends.

    State: see ``model.states.sums``; each row has room for whole vectors.
    """
    control, every, row = arg(args, at.control), arg(args, at.every), arg(args, at.state_row)
    ahead = arg(args, at.ahead)
    for i in range(4 * arg(args, at.first), 4 * arg(args, at.last), 64):
        out = arg(args, at.out) + i
        for t in range(control_field(control, CONTROL_TOKENS)):
            position = load_i64(control_field(control, CONTROL_POSITIONS) + 8 * t)
            state = load_i64(control_field(control, CONTROL_SEQUENCES) + 8 * t) + arg(args, at.state_at) + i
            place = position % every
            own, place_row = state, place * arg(args, at.offset_row)
            if ahead:
                own = state + 6 * row
                scores, stride = arg(args, at.ahead_scores), arg(args, at.ahead_scores_stride)
                score = score_of(scores, stride, arg(args, at.ahead_offsets), t, i, place_row)
                value = load_f32x16(ahead + t * arg(args, at.ahead_stride) + i)
                add_to(state + 3 * row, row, place == 0, value, score)
            scores, stride = arg(args, at.scores), arg(args, at.scores_stride)
            score = score_of(scores, stride, arg(args, at.offsets), t, i, place_row)
            value = load_f32x16(arg(args, at.x) + t * arg(args, at.x_stride) + i)
            add_to(own, row, place == 0, value, score)
            if place + 1 < every:
                continue
            if ahead and position >= every:
                store_f32x16(out, mean_of_both(own, state, row))
            else:
                store_f32x16(out, mean(own, row))
            out += arg(args, at.out_stride)
            if ahead:
                for j in range(3):
                    store_f32x16(state + j * row, load_f32x16(state + (3 + j) * row))


@step
def seen(args: int, thread: int, n_threads: int) -> None:
    """The last tokens where they lie in the ring, then summaries behind it; each thread takes whole tokens."""
    control, kept, every = arg(args, seen_at.control), arg(args, seen_at.kept), arg(args, seen_at.every)
    begin, end = share(control_field(control, CONTROL_TOKENS), thread, n_threads)
    for t in range(begin, end):
        position = load_i64(control_field(control, CONTROL_POSITIONS) + 8 * t)
        out = arg(args, seen_at.out) + t * arg(args, seen_at.out_stride)
        place = out + 8
        for j in range(max(0, position + 1 - arg(args, seen_at.window)), position + 1):
            store_i64(place, j % kept)
            place += 8
        if arg(args, seen_at.chosen):
            chosen = arg(args, seen_at.chosen) + t * arg(args, seen_at.chosen_stride)
            for j in range(load_i64(chosen)):
                store_i64(place, kept + load_i64(chosen + 8 + 8 * j))
                place += 8
        elif every:
            for j in range((position + 1) // every):
                store_i64(place, kept + j)
                place += 8
        store_i64(out, (place - out) // 8 - 1)


@step
def tokens(args: int, thread: int, n_threads: int) -> None:
    """The tokens of the stretches that each token has chosen, in their order; each thread takes whole tokens."""
    control, every = arg(args, tokens_at.control), arg(args, tokens_at.every)
    begin, end = share(control_field(control, CONTROL_TOKENS), thread, n_threads)
    for t in range(begin, end):
        n_tokens = load_i64(control_field(control, CONTROL_POSITIONS) + 8 * t) + 1
        chosen = arg(args, tokens_at.chosen) + t * arg(args, tokens_at.chosen_stride)
        out = arg(args, tokens_at.out) + t * arg(args, tokens_at.out_stride)
        place = out + 8
        for i in range(load_i64(chosen)):
            first = load_i64(chosen + 8 + 8 * i) * every
            for j in range(every):
                store_i64(place + 8 * j, first + j)
            place += 8 * every
        for j in range(n_tokens // every * every, n_tokens):
            store_i64(place, j)
            place += 8
        store_i64(out, (place - out) // 8 - 1)
