"""Activations as the matrix kernels want them: integers with a scale per 32 values, or float32.

d = max|x| / 127, q = round(x / d) to the nearest even, e = d * sum(q).  The same
numbers go into every format (layout.ACTIVATION_FORMATS, layout.TILE_BLOCK) but "int16", which
has 16 bits (d = max|x| / 32767): signed 8-bit weights are widened anyway, so finer
activations cost nothing with them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llmgen.backends.cpu.kernels.abi import (
    CONTROL_OUTPUT_ROWS,
    CONTROL_TOKENS,
    arg,
    control_field,
    inline,
    share,
    step,
)
from llmgen.backends.cpu.kernels.arguments import Quantize, Tiles, places
from llmgen.backends.cpu.kernels.dot import LEVEL
from llmgen.backends.cpu.kernels.layout import (
    ACTIVATION_FORMATS,
    PAIR_BLOCK,
    PAIR_D,
    PAIR_E,
    PAIR_E0,
    PAIR_E1,
    PAIR_NEG,
    PAIR_NEG0,
    TILE_BLOCK,
    TILE_D,
    TILE_E,
    TILE_E0,
    TILE_E1,
    TILE_NEG,
    TILE_NEG0,
    TILE_TOKENS,
)
from llmgen.backends.cpu.kernels.simd import (
    absolute,
    i16x16,
    join_i8x16,
    load_f32,
    load_f32x16,
    load_i64,
    max_f32x16,
    maximum,
    nearest,
    shuffle,
    splat,
    store_f32,
    store_f32x16,
    store_i8x32,
    store_i16x16,
    store_i32,
    sum_i32x16,
    to_i8,
    to_i16,
    to_int,
    zero_f32x16,
    zero_i32x16,
)
from llmgen.backends.cpu.kernels.transpose import store_tile

PAIRS = LEVEL == "amx"
"""Whether two tiles lie side by side."""
_d, _e, _e0, _e1, _neg, _neg0 = (
    (PAIR_D, PAIR_E, PAIR_E0, PAIR_E1, PAIR_NEG, PAIR_NEG0)
    if PAIRS
    else (TILE_D, TILE_E, TILE_E0, TILE_E1, TILE_NEG, TILE_NEG0)
)

_127 = np.float32(127.0)


@inline
def quantize32(x, largest):  # type: ignore[no-untyped-def]
    """32 floats at x -> (q of the first 16 as i32x16, of the last 16, d), |q| <= largest; a NaN ends up in d."""
    a0, a1 = load_f32x16(x), load_f32x16(x + 64)
    top = max_f32x16(maximum(absolute(a0), absolute(a1)))
    inverse = splat(largest / top if top > 0 else np.float32(0.0))
    return to_int(nearest(a0 * inverse)), to_int(nearest(a1 * inverse)), top / largest


_INT8, _INT8_SUPER, _INT16 = (ACTIVATION_FORMATS[kind].nbytes for kind in ("int8", "int8_super", "int16"))


@inline
def put_int8(rec, block, q0, q1, d):  # type: ignore[no-untyped-def]
    p = rec + block * _INT8
    store_i8x32(p, join_i8x16(to_i8(q0), to_i8(q1)))
    store_f32(p + 32, d)
    total = sum_i32x16(q0 + q1)
    store_f32(p + 36, d * np.float32(total))
    store_i32(p + 40, total)


evens_first = shuffle(i16x16, [*range(0, 16, 2), *range(1, 16, 2)])


@inline
def put_int16(rec, block, q0, q1, d):  # type: ignore[no-untyped-def]
    p = rec + block * _INT16
    store_i16x16(p, evens_first(to_i16(q0)))
    store_i16x16(p + 32, evens_first(to_i16(q1)))
    store_f32(p + 64, d)


@inline
def put_int8_super(rec, block, q0, q1, d):  # type: ignore[no-untyped-def]
    p = rec + (block >> 3) * _INT8_SUPER
    k = block & 7
    store_i8x32(p + 32 * k, join_i8x16(to_i8(q0), to_i8(q1)))
    s0, s1 = np.float32(sum_i32x16(q0)), np.float32(sum_i32x16(q1))
    at = p + 256 + 4 * (k + (k & 4))  # [d0..3 e0..3 d4..7 e4..7]
    store_f32(at, d)
    store_f32(at + 16, d * (s0 + s1))
    store_f32(p + 320 + 8 * k, d)
    store_f32(p + 324 + 8 * k, d)
    store_f32(p + 384 + 8 * k, d * s0)
    store_f32(p + 388 + 8 * k, d * s1)


at, tiles_at = places(Quantize), places(Tiles)


@inline
def columns_of(args, thread, n_threads):  # type: ignore[no-untyped-def]
    """The columns [first, last) that this thread quantizes: all of them, or with ``split_tokens`` its share."""
    n = control_field(arg(args, at.control), arg(args, at.count))
    if arg(args, at.split_tokens):
        return share(n, thread, n_threads)
    return 0, n


@inline
def source_of(args, column):  # type: ignore[no-untyped-def]
    """Address of the column's activations; with ``gather`` the columns are the tokens that want logits."""
    row = column
    if arg(args, at.gather):
        row = load_i64(control_field(arg(args, at.control), CONTROL_OUTPUT_ROWS) + 8 * column)
    return arg(args, at.x) + row * arg(args, at.x_stride)


def _quantizer(put: Any, largest: int) -> Any:
    top = np.float32(largest)

    def quantize(args: int, thread: int, n_threads: int) -> None:
        """Quantize blocks first..last of 32 activations; blocks from ``real`` on do not exist and become zero."""
        first, last = columns_of(args, thread, n_threads)
        for column in range(first, last):
            x = source_of(args, column)
            out = arg(args, at.out) + column * arg(args, at.out_stride)
            for block in range(arg(args, at.first), arg(args, at.last)):
                if block < arg(args, at.real):
                    q0, q1, d = quantize32(x + 128 * block, top)
                    put(out, block, q0, q1, d)
                else:
                    put(out, block, zero_i32x16(), zero_i32x16(), np.float32(0.0))

    return step(quantize)


int8, int8_super = _quantizer(put_int8, 127), _quantizer(put_int8_super, 127)
int16 = _quantizer(put_int16, 32767)


def _copy(args: int, thread: int, n_threads: int) -> None:
    """Floats first..last as they are, and zeros from ``real`` on; ``last`` is a multiple of 16."""
    first, last = columns_of(args, thread, n_threads)
    n = arg(args, at.real)
    for column in range(first, last):
        x = source_of(args, column)
        out = arg(args, at.out) + column * arg(args, at.out_stride)
        for i in range(arg(args, at.first), arg(args, at.last), 16):
            if i + 16 <= n:
                store_f32x16(out + 4 * i, load_f32x16(x + 4 * i))
            else:
                store_f32x16(out + 4 * i, zero_f32x16())
                for k in range(i, n):
                    store_f32(out + 4 * k, load_f32(x + 4 * k))


float32 = step(_copy)


@step
def tiles(args: int, thread: int, n_threads: int) -> None:
    """Prompt tokens, f32 -> tiles of eight tokens (layout.TILE_BLOCK); each thread its own tiles.

    At level amx two tiles lie side by side (layout.PAIR_BLOCK).  Tokens behind the last are
    whatever the buffer holds.
    """
    stride = arg(args, tiles_at.x_stride)
    n_tiles = (control_field(arg(args, tiles_at.control), CONTROL_TOKENS) + TILE_TOKENS - 1) // TILE_TOKENS
    first, last = share(n_tiles, thread, n_threads)
    for tile in range(first, last):
        x = arg(args, tiles_at.x) + tile * TILE_TOKENS * stride
        rows = (
            x,
            x + stride,
            x + 2 * stride,
            x + 3 * stride,
            x + 4 * stride,
            x + 5 * stride,
            x + 6 * stride,
            x + 7 * stride,
        )
        put_tile(arg(args, tiles_at.out), tile, arg(args, tiles_at.blocks), rows)


@inline
def put_tile(out, tile, blocks, rows):  # type: ignore[no-untyped-def]
    """Eight tokens, f32 at the addresses ``rows``, as the tile of this number in the tiles at out."""
    if PAIRS:
        out += tile // 2 * blocks * PAIR_BLOCK
        for t in range(TILE_TOKENS):
            place = tile % 2 * TILE_TOKENS + t
            for i in range(blocks):
                o = out + i * PAIR_BLOCK
                store_i8x32(o + 32 * place, _token(rows[t] + 128 * i, o, 4 * place))
    else:
        out += tile * blocks * TILE_BLOCK
        for i in range(0, 128 * blocks, 128):
            store_tile(
                out,
                (
                    _token(rows[0] + i, out, 0),
                    _token(rows[1] + i, out, 4),
                    _token(rows[2] + i, out, 8),
                    _token(rows[3] + i, out, 12),
                    _token(rows[4] + i, out, 16),
                    _token(rows[5] + i, out, 20),
                    _token(rows[6] + i, out, 24),
                    _token(rows[7] + i, out, 28),
                ),
            )
            out += TILE_BLOCK


@inline
def _token(x, out, lane):  # type: ignore[no-untyped-def]
    """32 activations of one token -> i8x32; scale and sums go to the token's lane of the block at out."""
    q0, q1, d = quantize32(x, _127)
    s0, s1 = sum_i32x16(q0), sum_i32x16(q1)
    store_f32(out + _d + lane, d)
    store_f32(out + _e + lane, d * np.float32(s0 + s1))
    store_f32(out + _e0 + lane, d * np.float32(s0))
    store_f32(out + _e1 + lane, d * np.float32(s1))
    store_i32(out + _neg + lane, -(s0 + s1))
    store_i32(out + _neg0 + lane, -s0)
    return join_i8x16(to_i8(q0), to_i8(q1))
