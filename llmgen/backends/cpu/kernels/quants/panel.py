"""Matrix times prompt tokens: panels of 16 rows, unpacked to 8 bits for the length of one product.

A panel holds, for every 32 weights, 8 groups of [16 rows][4 weights] (at level i8mm 4 groups of
[16 rows][8 weights]) and behind them a scale per row and an offset per row (f32).  One pass takes the panel times a few
tokens (passes.py) with all sums in registers; each token's sum runs over the blocks
in order, so a result depends neither on the other tokens nor on the threads.
"""

from __future__ import annotations

from typing import Any

from llmgen.backends.cpu.kernels import amx
from llmgen.backends.cpu.kernels.abi import CONTROL_TOKENS, arg, control_field, inline, step
from llmgen.backends.cpu.kernels.arguments import Panel, places
from llmgen.backends.cpu.kernels.dot import FUSED
from llmgen.backends.cpu.kernels.layout import PANEL_ROWS, PANEL_SPACE, TILE_TOKENS
from llmgen.backends.cpu.kernels.quants import TABLE, QuantType
from llmgen.backends.cpu.kernels.quants.block import Block, functions_of
from llmgen.backends.cpu.kernels.quants.passes import (
    PASS,
    SIGNED,
    TILED,
    activations_of,
    load_sums,
    pass_of,
    zero_sums,
)
from llmgen.backends.cpu.kernels.quants.products import products
from llmgen.backends.cpu.kernels.simd import Vec, constant, i8x32, i8x64, load_f32x16, store_f32x16
from llmgen.backends.cpu.kernels.transpose import HALF_PANEL, store_pairs_of_panel, store_rows_of_panel

at = places(Panel)


def _less(weights_of: Any, zero: int, kind: Vec) -> Any:
    """The weights, less their zero point."""
    less_by = constant(kind, [zero] * kind.n)

    @inline
    def less(p, j):  # type: ignore[no-untyped-def]
        return weights_of(p, j) - less_by()

    return less


def _make(quant: QuantType, functions: Block) -> Any:
    weights_of, scales_of, zero = functions.weights, functions.panel_scales, functions.zero
    has_products = bool(quant.product_bits) and FUSED
    by_pairs = functions.pairs is not None and not has_products
    pairs_of = functions.pairs if by_pairs else weights_of
    if zero and (SIGNED or has_products):
        weights_of, pairs_of, zero = _less(weights_of, zero, i8x32), _less(pairs_of, zero, i8x64), 0
    if has_products:
        weights_of = products(weights_of, functions.small_scales, quant.product_bits)
    panel_bytes, block_bytes, sub_blocks = quant.panel_bytes, quant.block_bytes, quant.block // 32
    begin_tiles = amx.configuring(quant.two_scales)
    multiply = pass_of(quant, functions.has_offset, zero)

    @inline
    def row_address(weights, row_bytes, row, n_rows, copied_row, copy_address):  # type: ignore[no-untyped-def]
        # rows behind the last repeat it; their results land in the padding of the output
        row = min(row, n_rows - 1)
        return copy_address if row == copied_row else weights + row * row_bytes

    @inline
    def rows_by_halves(p0, p1, p2, p3, p4, p5, p6, p7, o):  # type: ignore[no-untyped-def]
        for j in range(sub_blocks):
            rows = (
                weights_of(p0, j),
                weights_of(p1, j),
                weights_of(p2, j),
                weights_of(p3, j),
                weights_of(p4, j),
                weights_of(p5, j),
                weights_of(p6, j),
                weights_of(p7, j),
            )
            store_rows_of_panel(o + j * panel_bytes, rows)

    @inline
    def rows_by_pairs(p0, p1, p2, p3, p4, p5, p6, p7, o):  # type: ignore[no-untyped-def]
        for i in range(sub_blocks // 2):
            rows = (
                pairs_of(p0, i),
                pairs_of(p1, i),
                pairs_of(p2, i),
                pairs_of(p3, i),
                pairs_of(p4, i),
                pairs_of(p5, i),
                pairs_of(p6, i),
                pairs_of(p7, i),
            )
            store_pairs_of_panel(o + 2 * i * panel_bytes, panel_bytes, rows)

    unpack_rows = rows_by_pairs if by_pairs else rows_by_halves

    @inline
    def unpack_panel(weights, row_bytes, row, n_rows, copied_row, copy_address, start, n, panel):  # type: ignore[no-untyped-def]
        """Of 16 rows from ``row`` on n file blocks from ``start`` on -> [32 weights][panel_bytes], as above."""
        for half in range(2):
            r = row + 8 * half
            p0 = row_address(weights, row_bytes, r, n_rows, copied_row, copy_address)
            p1 = row_address(weights, row_bytes, r + 1, n_rows, copied_row, copy_address)
            p2 = row_address(weights, row_bytes, r + 2, n_rows, copied_row, copy_address)
            p3 = row_address(weights, row_bytes, r + 3, n_rows, copied_row, copy_address)
            p4 = row_address(weights, row_bytes, r + 4, n_rows, copied_row, copy_address)
            p5 = row_address(weights, row_bytes, r + 5, n_rows, copied_row, copy_address)
            p6 = row_address(weights, row_bytes, r + 6, n_rows, copied_row, copy_address)
            p7 = row_address(weights, row_bytes, r + 7, n_rows, copied_row, copy_address)
            o = panel
            for block in range(start, start + n):
                at = block * block_bytes
                unpack_rows(
                    p0 + at,
                    p1 + at,
                    p2 + at,
                    p3 + at,
                    p4 + at,
                    p5 + at,
                    p6 + at,
                    p7 + at,
                    o + HALF_PANEL * half,
                )
                s = o + 512 + 32 * half
                scales_of(p0 + at, s, panel_bytes)
                scales_of(p1 + at, s + 4, panel_bytes)
                scales_of(p2 + at, s + 8, panel_bytes)
                scales_of(p3 + at, s + 12, panel_bytes)
                scales_of(p4 + at, s + 16, panel_bytes)
                scales_of(p5 + at, s + 20, panel_bytes)
                scales_of(p6 + at, s + 24, panel_bytes)
                scales_of(p7 + at, s + 28, panel_bytes)
                o += sub_blocks * panel_bytes

    def panel(args: int, thread: int, n_threads: int) -> None:
        """out[token][row] (+)= weights[row] . x[token] for this thread's panels and every token.

        first, last: panels of 16 rows; x: tiles of 8 tokens; out: f32.  ``together`` panels
        and ``chunk`` blocks of their rows are taken at a time, so that what is read again and
        again stays in the caches: a tile's activations serve all these panels, and the
        unpacked panels all tiles.  A sum that has begun waits in the scratch for the next chunk.
        """
        weights = arg(args, at.weights)
        row_bytes = arg(args, at.row_bytes)
        n_rows = arg(args, at.rows)
        copied_row = arg(args, at.copied_row)
        copy_address = arg(args, at.copy_address)
        blocks = arg(args, at.blocks)
        chunk = arg(args, at.chunk)
        together = arg(args, at.together)
        scratch = arg(args, at.scratch)
        out_stride = arg(args, at.out_stride)
        add = arg(args, at.add) != 0
        n_tokens = control_field(arg(args, at.control), CONTROL_TOKENS)
        n_rows_out = (n_tokens + TILE_TOKENS - 1) // TILE_TOKENS * TILE_TOKENS
        groups = arg(args, at.groups)
        one_panel = chunk * sub_blocks * panel_bytes
        panels = scratch + PANEL_SPACE
        sums = panels + together * one_panel
        n_passes = (n_tokens + PASS - 1) // PASS
        panel_sums = n_passes * PASS * PANEL_ROWS * 4
        last_panel = arg(args, at.last)
        if TILED:
            begin_tiles(scratch)
        for index in range(arg(args, at.first), last_panel, together):
            count = min(together, last_panel - index)
            for start in range(0, blocks, chunk):
                n = min(chunk, blocks - start)
                for i in range(count):
                    row, to = (index + i) * PANEL_ROWS, panels + i * one_panel
                    unpack_panel(weights, row_bytes, row, n_rows, copied_row, copy_address, start, n, to)
                for t in range(0, n_passes * PASS, PASS):
                    x = activations_of(arg(args, at.x), t, blocks * sub_blocks, start * sub_blocks)
                    for i in range(count):
                        begun = sums + i * panel_sums + 64 * t
                        f = zero_sums() if start == 0 else load_sums(begun)
                        f = multiply(f, panels + i * one_panel, x, n * sub_blocks, groups, scratch)
                        if start + n < blocks:
                            for v in f:
                                store_f32x16(begun, v)
                                begun += 64
                        else:
                            o = arg(args, at.out) + t * out_stride + 64 * (index + i)
                            end = arg(args, at.out) + n_rows_out * out_stride
                            for v in f:
                                if o < end:
                                    if add:
                                        v = v + load_f32x16(o)
                                    store_f32x16(o, v)
                                o += out_stride
        if TILED:
            amx.end()

    return step(panel)


def __getattr__(key: str) -> Any:
    """The kernel of a type, made when it is asked for."""
    return _make(TABLE[key], functions_of(key))
