"""Mixtures of experts: the sorting of tokens by expert, and products with the chosen ones (expert_choice.py).

The matrices of an expert are multiplied by the kernels that multiply all others, which are
called once for each active expert, with arguments of its own (``matvec``, ``panel``).  So only
the weights of chosen experts are read, each once for all tokens that chose it, and a token's
sums are those that it would have alone.
"""

from __future__ import annotations

import numpy as np

from llmgen.backends.cpu.kernels.abi import (
    CONTROL_TOKENS,
    arg,
    control_field,
    inline,
    share,
    step,
    tokens_of,
)
from llmgen.backends.cpu.kernels.activations import put_tile
from llmgen.backends.cpu.kernels.arguments import Matvec, Panel, places
from llmgen.backends.cpu.kernels.expert_arguments import (
    ExpertMatvec,
    ExpertPanel,
    Gather,
    GatherTiles,
    Mix,
    ScaleAndShift,
    Sort,
)
from llmgen.backends.cpu.kernels.layout import ARG_NEXT, STEP_BYTES, TILE_TOKENS
from llmgen.backends.cpu.kernels.routing import (
    ACTIVE,
    NO_TOKEN,
    PAIR_ROWS,
    RECORD_BYTES,
    RECORD_EXPERT,
    RECORD_FIRST,
    RECORDS,
    ROW_TOKENS,
)
from llmgen.backends.cpu.kernels.simd import (
    fma,
    load_f32,
    load_f32x16,
    load_i64,
    splat,
    store_f32,
    store_f32x16,
    store_i64,
)
from llmgen.backends.cpu.kernels.team import call_step

sort_at, gather_at, tiles_at = places(Sort), places(Gather), places(GatherTiles)
shift_at, mix_at, matvec_at, panel_at = (
    places(ScaleAndShift),
    places(Mix),
    places(ExpertMatvec),
    places(ExpertPanel),
)
dense_matvec, dense_panel = places(Matvec), places(Panel)


# ---- the sorting ------------------------------------------------------------------


@step
def sort(args: int, thread: int, n_threads: int) -> None:
    """Fill a routing block: a counting sort of all pairs by expert, which keeps the order of the tokens."""
    n_tokens = control_field(arg(args, sort_at.control), CONTROL_TOKENS)
    n_used, n, unit = arg(args, sort_at.n_used), arg(args, sort_at.n_experts), arg(args, sort_at.unit)
    routing = arg(args, sort_at.routing)
    following = routing + arg(args, sort_at.next_rows)
    pairs, tokens = routing + arg(args, sort_at.pair_rows), routing + arg(args, sort_at.row_tokens)
    store_i64(routing + PAIR_ROWS, pairs)
    store_i64(routing + ROW_TOKENS, tokens)
    for e in range(n):
        store_i64(following + 8 * e, 0)
    for t in range(n_tokens):
        ids = arg(args, sort_at.ids) + t * arg(args, sort_at.ids_stride)
        for k in range(n_used):
            place = following + 8 * load_i64(ids + 8 * k)
            store_i64(place, load_i64(place) + 1)
    row, active = 0, 0
    for e in range(n):
        count = load_i64(following + 8 * e)
        store_i64(following + 8 * e, row)
        if count > 0:
            record = routing + RECORDS + RECORD_BYTES * active
            store_i64(record, count)
            store_i64(record + RECORD_EXPERT, e)
            store_i64(record + RECORD_FIRST, row)
            active += 1
            end = row + (count + unit - 1) // unit * unit
            for filling in range(row + count, end):
                store_i64(tokens + 8 * filling, NO_TOKEN)
            row = end
    store_i64(routing, row)
    store_i64(routing + ACTIVE, active)
    for t in range(n_tokens):
        ids = arg(args, sort_at.ids) + t * arg(args, sort_at.ids_stride)
        for k in range(n_used):
            place = following + 8 * load_i64(ids + 8 * k)
            row = load_i64(place)
            store_i64(place, row + 1)
            store_i64(pairs + 8 * (t * n_used + k), row)
            store_i64(tokens + 8 * row, t)


# ---- rows of tokens ---------------------------------------------------------------


@step
def gather(args: int, thread: int, n_threads: int) -> None:
    """out[row] = x[token of the row], times the weight of its expert there if there are weights."""
    routing, weights = arg(args, gather_at.routing), arg(args, gather_at.weights)
    pairs, tokens, n_used = (
        load_i64(routing + PAIR_ROWS),
        load_i64(routing + ROW_TOKENS),
        arg(args, gather_at.n_used),
    )
    first, last = tokens_of(
        arg(args, gather_at.control), arg(args, gather_at.split_tokens), thread, n_threads
    )
    for row in range(first, last):
        token = load_i64(tokens + 8 * row)
        if token != NO_TOKEN:
            weight = np.float32(1.0)
            if weights != 0:
                for k in range(n_used):
                    if load_i64(pairs + 8 * (token * n_used + k)) == row:
                        weight = load_f32(weights + token * arg(args, gather_at.weights_stride) + 4 * k)
            x = arg(args, gather_at.x) + token * arg(args, gather_at.x_stride)
            out = arg(args, gather_at.out) + row * arg(args, gather_at.out_stride)
            for i in range(0, 4 * arg(args, gather_at.n), 64):
                store_f32x16(out + i, load_f32x16(x + i) * splat(weight))


@inline
def _source(x, stride, tokens, row):  # type: ignore[no-untyped-def]
    """The token of a row; rows that only fill up take any."""
    return x + max(load_i64(tokens + 8 * row), 0) * stride


@step
def tiles(args: int, thread: int, n_threads: int) -> None:
    """Prompt tokens, f32 -> tiles of eight rows; each thread its own tiles.  Tiles without a token are left out."""
    routing = arg(args, tiles_at.routing)
    tokens = load_i64(routing + ROW_TOKENS)
    x, stride = arg(args, tiles_at.x), arg(args, tiles_at.x_stride)
    first, last = share((load_i64(routing) + TILE_TOKENS - 1) // TILE_TOKENS, thread, n_threads)
    for tile in range(first, last):
        row = tile * TILE_TOKENS
        if load_i64(tokens + 8 * row) != NO_TOKEN:
            rows = (
                _source(x, stride, tokens, row),
                _source(x, stride, tokens, row + 1),
                _source(x, stride, tokens, row + 2),
                _source(x, stride, tokens, row + 3),
                _source(x, stride, tokens, row + 4),
                _source(x, stride, tokens, row + 5),
                _source(x, stride, tokens, row + 6),
                _source(x, stride, tokens, row + 7),
            )
            put_tile(arg(args, tiles_at.out), tile, arg(args, tiles_at.blocks), rows)


@step
def mix(args: int, thread: int, n_threads: int) -> None:
    """out[token] = the sum of its rows in the order of its choice, each times its weight if there are weights."""
    n, n_used = arg(args, mix_at.n), arg(args, mix_at.n_used)
    pairs, weights = load_i64(arg(args, mix_at.routing) + PAIR_ROWS), arg(args, mix_at.weights)
    x, stride = arg(args, mix_at.x), arg(args, mix_at.x_stride)
    first, last = tokens_of(arg(args, mix_at.control), arg(args, mix_at.split_tokens), thread, n_threads)
    for t in range(first, last):
        out = arg(args, mix_at.out) + t * arg(args, mix_at.out_stride)
        for k in range(n_used):
            weight = np.float32(1.0)
            if weights != 0:
                weight = load_f32(weights + t * arg(args, mix_at.weights_stride) + 4 * k)
            row = x + load_i64(pairs + 8 * (t * n_used + k)) * stride
            if k == 0:
                for i in range(0, 4 * n, 64):
                    store_f32x16(out + i, load_f32x16(row + i) * splat(weight))
            else:
                for i in range(0, 4 * n, 64):
                    store_f32x16(out + i, fma(load_f32x16(row + i), splat(weight), load_f32x16(out + i)))


@step
def scale_and_shift(args: int, thread: int, n_threads: int) -> None:
    """x = x * its expert's factor + its expert's row of the shifts, in place; ``control`` is the routing block."""
    n, routing = arg(args, shift_at.n), arg(args, shift_at.control)
    scales, shifts = arg(args, shift_at.scales), arg(args, shift_at.shifts)
    first, last = tokens_of(routing, arg(args, shift_at.split_tokens), thread, n_threads)
    for i in range(load_i64(routing + ACTIVE)):
        record = routing + RECORDS + RECORD_BYTES * i
        expert, start = load_i64(record + RECORD_EXPERT), load_i64(record + RECORD_FIRST)
        factor = load_f32(scales + 4 * expert) if scales != 0 else np.float32(1.0)
        shift = shifts + expert * arg(args, shift_at.shift_bytes)
        for row in range(max(first, start), min(last, start + load_i64(record))):
            x = arg(args, shift_at.x) + row * arg(args, shift_at.x_stride)
            for j in range(0, 4 * n, 4):
                value = load_f32(x + j) * factor
                store_f32(x + j, value + load_f32(shift + j) if shifts != 0 else value)


# ---- products ---------------------------------------------------------------------


@inline
def put(table, i, value):  # type: ignore[no-untyped-def]
    """Set the i-th argument of a step."""
    store_i64(table + 8 * i, value)


@inline
def _copy_words(x, out, n):  # type: ignore[no-untyped-def]
    for i in range(0, 8 * n, 8):
        store_i64(out + i, load_i64(x + i))


@inline
def _first_weights(args, i, routing, row_bytes, first, expert_rows, upcoming):  # type: ignore[no-untyped-def]
    """What this thread reads first for the i-th active expert; behind the last one: what comes then."""
    if i >= load_i64(routing + ACTIVE):
        return upcoming
    expert = load_i64(routing + RECORDS + RECORD_BYTES * i + RECORD_EXPERT)
    return arg(args, matvec_at.weights) + (expert * expert_rows + first) * row_bytes


@step
def matvec(args: int, thread: int, n_threads: int) -> None:
    """Call the matrix-vector kernel for each active expert, whose rows of x come together for it."""
    routing, table = arg(args, matvec_at.routing), arg(args, matvec_at.own)
    gathered = table + STEP_BYTES
    tokens = load_i64(routing + ROW_TOKENS)
    x, x_stride = arg(args, matvec_at.x), arg(args, matvec_at.x_stride)
    row_bytes, expert_rows = arg(args, matvec_at.row_bytes), arg(args, matvec_at.expert_rows)
    first_row, upcoming = arg(args, matvec_at.first), arg(args, ARG_NEXT)
    _copy_words(args, table, len(dense_matvec))
    for i in range(load_i64(routing + ACTIVE)):
        record = routing + RECORDS + RECORD_BYTES * i
        count, skipped = load_i64(record), load_i64(record + RECORD_EXPERT) * expert_rows
        first = load_i64(record + RECORD_FIRST)
        source = x + first * x_stride
        if arg(args, matvec_at.by_token):
            source = x + load_i64(tokens + 8 * first) * x_stride
            if count > 1:
                for k in range(count):
                    token = load_i64(tokens + 8 * (first + k))
                    _copy_words(x + token * x_stride, gathered + k * x_stride, x_stride // 8)
                source = gathered
        put(table, dense_matvec.weights, arg(args, matvec_at.weights) + skipped * row_bytes)
        put(table, dense_matvec.copied_row, arg(args, matvec_at.copied_row) - skipped)
        put(table, dense_matvec.x, source)
        put(table, dense_matvec.out, arg(args, matvec_at.out) + first * arg(args, matvec_at.out_stride))
        put(table, dense_matvec.control, record)
        put(
            table,
            ARG_NEXT,
            _first_weights(args, i + 1, routing, row_bytes, first_row, expert_rows, upcoming),
        )
        call_step(arg(args, matvec_at.kernel), table, thread, n_threads)


@step
def panel(args: int, thread: int, n_threads: int) -> None:
    """Call the panel kernel for each active expert and the tiles of its rows."""
    routing, table = arg(args, panel_at.routing), arg(args, panel_at.own)
    _copy_words(args, table, len(dense_panel))
    for i in range(load_i64(routing + ACTIVE)):
        record = routing + RECORDS + RECORD_BYTES * i
        skipped = load_i64(record + RECORD_EXPERT) * arg(args, panel_at.expert_rows)
        first = load_i64(record + RECORD_FIRST)
        weights = arg(args, panel_at.weights) + skipped * arg(args, panel_at.row_bytes)
        put(table, dense_panel.weights, weights)
        put(table, dense_panel.copied_row, arg(args, panel_at.copied_row) - skipped)
        put(
            table,
            dense_panel.x,
            arg(args, panel_at.x) + first // TILE_TOKENS * arg(args, panel_at.tile_bytes),
        )
        put(table, dense_panel.out, arg(args, panel_at.out) + first * arg(args, panel_at.out_stride))
        put(table, dense_panel.control, record)
        call_step(arg(args, panel_at.kernel), table, thread, n_threads)
