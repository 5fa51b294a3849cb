"""Matrix times generated tokens: rows straight from the file, one token or up to eight.

Types of superblocks and floats are read row by row; types of 32 weights a block, a few
rows side by side (lanes.py).  One column keeps its sums in registers, more keep them in
the first cache.

A row is decoded once for all columns; each column is summed exactly as it would be
alone, so the result for a token does not depend on the other tokens in the run.
"""

from __future__ import annotations

from typing import Any

from llmgen.backends.cpu.kernels.abi import arg, control_field, inline, step
from llmgen.backends.cpu.kernels.arguments import Matvec, places
from llmgen.backends.cpu.kernels.layout import ACTIVATION_FORMATS, ARG_NEXT, COLUMN_SUMS, MAX_COLUMNS
from llmgen.backends.cpu.kernels.quants import TABLE, QuantType
from llmgen.backends.cpu.kernels.quants.block import Lanes, Row, functions_of
from llmgen.backends.cpu.kernels.quants.lanes import (
    ROWS,
    every_fourth,
    first_row,
    load_rows,
    moved,
    scatter_rows,
    store_rows,
    zero_rows,
)
from llmgen.backends.cpu.kernels.simd import (
    load_f32x16,
    prefetch,
    prefetch_far,
    store_f32,
    store_f32x16,
    zero_f32x16,
)

AHEAD = 2048
"""Bytes ahead of a row's reading that its weights are asked for."""
SOON = 1024
"""The same for each of several streams of rows."""
STREAM = 4096
"""From how many bytes on the stretch of a lane is a stream: a page, which is as far as prefetchers look."""
FAR = 65536
"""Where rows lie side by side, the next two groups of them are asked for, the second only within so many bytes."""

at = places(Matvec)


@inline
def further(p, nbytes, end, upcoming):  # type: ignore[no-untyped-def]
    """The address ``nbytes`` on in what this thread reads: its rows up to ``end``, then what comes next."""
    q = p + nbytes
    if q >= end:
        if upcoming:
            q += upcoming - end
    return q


def _by_row(quant: QuantType, row: Row) -> Any:
    """The kernel of a type that takes one row at a time."""
    unpack, unpack_tail, fold, finish = row.unpack, row.unpack_tail, row.fold, row.finish
    step_bytes, x_bytes = (
        quant.step // quant.block * quant.block_bytes,
        ACTIVATION_FORMATS[quant.activations].nbytes,
    )
    has_tail = unpack_tail is not None

    @inline
    def ask(p):  # type: ignore[no-untyped-def]
        for line in range(0, step_bytes, 64):
            prefetch(p + line)

    def matvec(args: int, thread: int, n_threads: int) -> None:
        """out[column][row] = weights[row] . x[column] for this thread's rows.

        weights: rows of ``row_bytes`` bytes; the row ``copied_row`` is read at ``copy_address``,
        where bytes after it may be read too; x: activations; out: f32.
        """
        weights = arg(args, at.weights)
        row_bytes = arg(args, at.row_bytes)
        first = arg(args, at.first)
        last = arg(args, at.last)
        copied_row = arg(args, at.copied_row)
        copy_address = arg(args, at.copy_address)
        steps = arg(args, at.steps)
        tail = arg(args, at.tail)
        columns = control_field(arg(args, at.control), arg(args, at.count))
        end = weights + last * row_bytes
        upcoming = arg(args, ARG_NEXT)
        if columns == 1:
            x0 = arg(args, at.x)
            out = arg(args, at.out)
            # two rows at once, far from each other: streams of their own for the processor's prefetchers
            pairs = (last - first + 1) // 2
            for row in range(first, first + pairs):
                other = row + pairs if row + pairs < last else row
                p = weights + row * row_bytes
                q = weights + other * row_bytes
                p_following = p + SOON
                q_following = further(q, SOON, end, upcoming)
                if row == copied_row:
                    p = copy_address
                if other == copied_row:
                    q = copy_address
                x = x0
                a, m, b, n = zero_f32x16(), zero_f32x16(), zero_f32x16(), zero_f32x16()
                for _ in range(steps):
                    ask(p_following)
                    ask(q_following)
                    a, m = fold(unpack(p), x, a, m)
                    b, n = fold(unpack(q), x, b, n)
                    p_following += step_bytes
                    q_following += step_bytes
                    p += step_bytes
                    q += step_bytes
                    x += x_bytes
                if has_tail:
                    if tail:
                        a, m = fold(unpack_tail(p, tail), x, a, m)
                        b, n = fold(unpack_tail(q, tail), x, b, n)
                store_f32(out + 4 * row, finish(a, m))
                store_f32(out + 4 * other, finish(b, n))
            return
        x_stride = arg(args, at.x_stride)
        out_stride = arg(args, at.out_stride)
        sums = arg(args, at.scratch)
        for start in range(0, columns, MAX_COLUMNS):
            n = min(MAX_COLUMNS, columns - start)
            x0 = arg(args, at.x) + start * x_stride
            out = arg(args, at.out) + start * out_stride
            # a row of one half of this thread's rows, then one of the other: two streams here, too
            half = (last - first + 1) // 2
            for i in range(last - first):
                row = first + (i >> 1) + (i & 1) * half
                p = weights + row * row_bytes
                following = further(p, AHEAD, end, upcoming)
                if row == copied_row:
                    p = copy_address
                for c in range(n):
                    store_f32x16(sums + COLUMN_SUMS * c, zero_f32x16())
                    store_f32x16(sums + COLUMN_SUMS * c + 64, zero_f32x16())
                x = x0
                for _ in range(steps):
                    ask(following)
                    following += step_bytes
                    u = unpack(p)
                    for c in range(n):
                        s = sums + COLUMN_SUMS * c
                        a, m = fold(u, x + c * x_stride, load_f32x16(s), load_f32x16(s + 64))
                        store_f32x16(s, a)
                        store_f32x16(s + 64, m)
                    p += step_bytes
                    x += x_bytes
                if has_tail:
                    if tail:
                        u = unpack_tail(p, tail)
                        for c in range(n):
                            s = sums + COLUMN_SUMS * c
                            a, m = fold(u, x + c * x_stride, load_f32x16(s), load_f32x16(s + 64))
                            store_f32x16(s, a)
                            store_f32x16(s + 64, m)
                for c in range(n):
                    s = sums + COLUMN_SUMS * c
                    store_f32(out + c * out_stride + 4 * row, finish(load_f32x16(s), load_f32x16(s + 64)))

    return step(matvec)


def _by_lanes(quant: QuantType, lanes: Lanes) -> Any:
    """The kernel of a type that takes a block of ROWS rows at a time."""
    load, unpack, dots, scale = lanes.load, lanes.unpack, lanes.dots, lanes.scale
    block_bytes, x_bytes = quant.block_bytes, ACTIVATION_FORMATS[quant.activations].nbytes
    step_bytes = ROWS * block_bytes
    lines = -(-step_bytes // 64)

    @inline
    def ask(following, stride, lane):  # type: ignore[no-untyped-def]
        for _ in range(lines):
            prefetch_far(following + lane * stride)
            lane = (lane + 1) & (ROWS - 1)
        return lane

    def matvec(args: int, thread: int, n_threads: int) -> None:
        """out[column][row] = weights[row] . x[column] for this thread's rows.

        weights: rows of ``row_bytes`` bytes, ``steps`` blocks each; x: activations; out: f32.

        The rows that a step takes lie side by side where a thread has few of them.  Where it has
        many, each lane has a stretch of rows of its own, so that the processor sees ROWS streams
        that run on from page to page, which is what its prefetchers are made for.
        """
        row_bytes = arg(args, at.row_bytes)
        last = arg(args, at.last)
        steps = arg(args, at.steps)
        x_stride = arg(args, at.x_stride)
        out_stride = arg(args, at.out_stride)
        sums = arg(args, at.scratch)
        end = arg(args, at.weights) + last * row_bytes
        upcoming = arg(args, ARG_NEXT)
        columns = control_field(arg(args, at.control), arg(args, at.count))
        groups = (last - arg(args, at.first)) // ROWS
        streams = groups * row_bytes >= STREAM
        # behind the last whole group the same row stands in all lanes
        rest = arg(args, at.first) + groups * ROWS
        for start in range(0, columns, MAX_COLUMNS):
            n = min(MAX_COLUMNS, columns - start)
            x0 = arg(args, at.x) + start * x_stride
            row = arg(args, at.first)
            for group in range(groups + last - rest):
                apart = groups if streams else 1
                if group >= groups:
                    row = rest + group - groups
                    apart = 0
                stride = apart * row_bytes
                first = arg(args, at.weights) + row * row_bytes
                # what is asked for: of each stream in turn what it needs soon; rows that lie
                # side by side and what follows the streams, line by line
                following, ask_stride, ask_step, turn = first + SOON, stride, block_bytes, ROWS - 1
                if not streams or group + 1 >= groups:
                    ahead = 0 if streams else max(ROWS * row_bytes, min(2 * ROWS * row_bytes, FAR))
                    following = further(end if streams else first, ahead, end, upcoming)
                    ask_stride, ask_step, turn = 64, step_bytes, 0
                lane = 0
                p = every_fourth(first, stride)
                x = x0
                out = arg(args, at.out) + start * out_stride + 4 * row
                if n == 1:
                    s = zero_rows()
                    # a block is multiplied while the next is loaded and turned, which takes as long
                    loaded = load(p, stride)
                    for _ in range(steps - 1):
                        lane = ask(following, ask_stride, lane) & turn
                        following += ask_step
                        p = moved(p, block_bytes)
                        coming = load(p, stride)
                        u = unpack(loaded)
                        s = scale(u, x, dots(u, x), s)
                        loaded = coming
                        x += x_bytes
                    u = unpack(loaded)
                    s = scale(u, x, dots(u, x), s)
                    put_rows(out, s, apart)
                else:
                    for c in range(n):
                        store_rows(sums + COLUMN_SUMS * c, zero_rows())
                    loaded = load(p, stride)
                    for i in range(steps):
                        lane = ask(following, ask_stride, lane) & turn
                        following += ask_step
                        # the last block comes again: then there is none to be loaded ahead
                        p = moved(p, block_bytes if i + 1 < steps else 0)
                        coming = load(p, stride)
                        u = unpack(loaded)
                        # a column is added while the next is multiplied
                        s = sums
                        xc = x
                        before = dots(u, xc)
                        for _ in range(n - 1):
                            here = dots(u, xc + x_stride)
                            store_rows(s, scale(u, xc, before, load_rows(s)))
                            before = here
                            xc += x_stride
                            s += COLUMN_SUMS
                        store_rows(s, scale(u, xc, before, load_rows(s)))
                        loaded = coming
                        x += x_bytes
                    for c in range(n):
                        put_rows(out + c * out_stride, load_rows(sums + COLUMN_SUMS * c), apart)
                row += 1 if streams else ROWS

    return step(matvec)


@inline
def put_rows(out, sums, apart):  # type: ignore[no-untyped-def]
    """The lanes' sums, which belong ``apart`` rows from one another; of a single row (0) the first."""
    if apart == 1:
        store_rows(out, sums)
    elif apart:
        scatter_rows(out, 4 * apart, sums)
    else:
        store_f32(out, first_row(sums))


def __getattr__(key: str) -> Any:
    """The kernel of a type, made when it is asked for."""
    dot = functions_of(key).dot
    return (_by_row if isinstance(dot, Row) else _by_lanes)(TABLE[key], dot)
