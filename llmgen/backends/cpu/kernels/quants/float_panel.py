"""Matrix times prompt tokens for F64, F32, F16 and BF16 weights: panels of 16 or 32 rows in float32.

A panel holds for each column the weights of its rows, f32 [columns][ROWS], so that one instruction multiplies a
register of rows by an activation; all sums of a few tokens stay in registers.  The tokens' activations are copied
side by side first, because rows a power of two apart would compete for a few lines of the first cache.

A sum takes up ``CHAIN`` products in a row, begun at zero, before it is added to those before it: the rounding of
a sum grows with its length.  This order is the same at every level, whatever the number of tokens, of threads, or of
columns taken at once, so a result depends on none of them.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from llmgen.backends.cpu.kernels.abi import CONTROL_TOKENS, arg, control_field, inline, step
from llmgen.backends.cpu.kernels.arguments import Panel, places
from llmgen.backends.cpu.kernels.dot import AVX512, TOKENS
from llmgen.backends.cpu.kernels.layout import FLOAT_SPACE, FLOAT_STRIDE, PANEL_ROWS
from llmgen.backends.cpu.kernels.quants import TABLE, QuantType
from llmgen.backends.cpu.kernels.quants.block import Floats, functions_of
from llmgen.backends.cpu.kernels.quants.passes import zeros
from llmgen.backends.cpu.kernels.simd import (
    call_intrinsic,
    f32x16,
    load_f32,
    load_f32x16,
    offset,
    pointer,
    splat_value,
    store_f32,
    store_f32x16,
    zero_f32x16,
)
from llmgen.backends.cpu.kernels.transpose import transposed_storer

at = places(Panel)

VECTORS = 2 if AVX512 else 1
"""Times 16 rows of a panel.  Either way two registers of weights share an activation, which has to be loaded into
all lanes of one: with fewer the processor could load them no faster than multiply."""
ROWS = VECTORS * PANEL_ROWS
CHAIN = 32
UNROLLED = 4
"""Columns that the loop takes at once."""
_SUMS = types.UniTuple(f32x16, TOKENS * VECTORS)
_zero_sums = zeros(TOKENS * VECTORS)
_store_eight = transposed_storer(4 * ROWS)


def _adding(columns: int) -> Any:
    """``f(sums, w, x)``: the products with so many columns added to sums [TOKENS][ROWS].

    w: address of f32 [columns][ROWS]; x: of f32 [TOKENS][columns], FLOAT_STRIDE bytes from one token to the next.
    """

    @intrinsic
    def add(typing_context: Any, sums: Any, w: Any, x: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            out = [b.extract_value(args[0], i) for i in range(_SUMS.count)]
            for k in range(columns):
                column = offset(b, args[1], 4 * ROWS * k)
                rows = [_load(b, offset(b, column, 64 * v)) for v in range(VECTORS)]
                for i in range(_SUMS.count):
                    t, v = divmod(i, VECTORS)
                    place = pointer(b, offset(b, args[2], FLOAT_STRIDE * t + 4 * k))
                    value = splat_value(b, b.load(place, align=4, typ=ir.FloatType()), f32x16.llvm)
                    out[i] = call_intrinsic(b, "llvm.fma.v16f32", f32x16.llvm, [rows[v], value, out[i]])
            return context.make_tuple(b, _SUMS, out)

        return _SUMS(_SUMS, types.intp, types.intp), generate

    return add


def _load(b: Any, address: Any) -> Any:
    return b.load(pointer(b, address), align=64, typ=f32x16.llvm)


_add_column, _add_columns = _adding(1), _adding(UNROLLED)


@intrinsic
def _add_to(typing_context: Any, address: Any, sums: Any) -> Any:
    """The sums in memory, f32 [TOKENS][ROWS], += sums."""

    def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
        for i in range(_SUMS.count):
            place = offset(b, args[0], 64 * i)
            total = b.fadd(_load(b, place), b.extract_value(args[1], i))
            b.store(total, pointer(b, place), align=64)
        return context.get_dummy_value()

    return types.void(types.intp, _SUMS), generate


@inline
def _multiply(begun, panel, x, n):  # type: ignore[no-untyped-def]
    """The sums at ``begun``, f32 [TOKENS][ROWS], += n columns of the panel times the activations at x."""
    for start in range(0, n, CHAIN):
        columns = min(CHAIN, n - start)
        sums = _zero_sums()
        for _ in range(columns // UNROLLED):
            sums = _add_columns(sums, panel, x)
            panel += 4 * ROWS * UNROLLED
            x += 4 * UNROLLED
        for _ in range(columns % UNROLLED):
            sums = _add_column(sums, panel, x)
            panel += 4 * ROWS
            x += 4
        _add_to(begun, sums)


@inline
def _copy(source, to, n):  # type: ignore[no-untyped-def]
    """n floats."""
    whole = n // 16 * 16
    for k in range(0, whole, 16):
        store_f32x16(to + 4 * k, load_f32x16(source + 4 * k))
    for k in range(whole, n):
        store_f32(to + 4 * k, load_f32(source + 4 * k))


@inline
def _clear(sums):  # type: ignore[no-untyped-def]
    """Those of a pass begin at zero."""
    for i in range(TOKENS * VECTORS):
        store_f32x16(sums + 64 * i, zero_f32x16())


@inline
def _store(sums, out, out_stride, tokens, vectors, add):  # type: ignore[no-untyped-def]
    """The sums of so many tokens and times 16 rows to the result, or added to it."""
    for t in range(tokens):
        for v in range(vectors):
            value = load_f32x16(sums + 64 * (t * VECTORS + v))
            place = out + t * out_stride + 64 * v
            if add:
                value = value + load_f32x16(place)
            store_f32x16(place, value)


def _unpacking(size: int, functions: Floats) -> Any:
    """``unpack(weights, row_bytes, row, n_rows, n, panel)``: n columns of the ROWS rows from ``row`` on -> a panel.

    Rows behind the last repeat it; their results land in the padding of the output, or nowhere.
    """
    load1, load8 = functions.load1, functions.load8

    @inline
    def unpack(weights, row_bytes, row, n_rows, n, panel):  # type: ignore[no-untyped-def]
        last = n_rows - 1
        whole = n // 8 * 8
        for r in range(row, row + ROWS, 8):
            p0 = weights + min(r, last) * row_bytes
            p1 = weights + min(r + 1, last) * row_bytes
            p2 = weights + min(r + 2, last) * row_bytes
            p3 = weights + min(r + 3, last) * row_bytes
            p4 = weights + min(r + 4, last) * row_bytes
            p5 = weights + min(r + 5, last) * row_bytes
            p6 = weights + min(r + 6, last) * row_bytes
            p7 = weights + min(r + 7, last) * row_bytes
            o = panel + 4 * (r - row)
            for i in range(0, whole * size, 8 * size):
                low = load8(p0 + i), load8(p1 + i), load8(p2 + i), load8(p3 + i)
                high = load8(p4 + i), load8(p5 + i), load8(p6 + i), load8(p7 + i)
                _store_eight(o, low + high)
                o += 8 * 4 * ROWS
        for r in range(ROWS):
            p = weights + min(row + r, last) * row_bytes
            for k in range(whole, n):
                store_f32(panel + 4 * (ROWS * k + r), load1(p + size * k))

    return unpack


def _make(quant: QuantType, functions: Floats) -> Any:
    size = quant.block_bytes
    unpack = _unpacking(size, functions)

    def panel(args: int, thread: int, n_threads: int) -> None:
        """out[token][row] (+)= weights[row] . x[token] for this thread's panels and every token.

        As for quantized types (panel.py), but x is f32 [tokens][blocks], and ``chunk`` is a multiple of CHAIN.
        """
        weights = arg(args, at.weights)
        row_bytes = arg(args, at.row_bytes)
        n_rows = arg(args, at.rows)
        columns = arg(args, at.blocks)
        chunk = arg(args, at.chunk)
        x_stride = arg(args, at.x_stride)
        tile = arg(args, at.scratch)
        out_stride = arg(args, at.out_stride)
        add = arg(args, at.add) != 0
        n_tokens = control_field(arg(args, at.control), CONTROL_TOKENS)
        first = arg(args, at.first)
        last = arg(args, at.last)
        # rounds of about as many panels each: of a small one the copies of all activations would cost too much
        together = max(1, arg(args, at.together) // VECTORS)
        n_panels = (last - first + VECTORS - 1) // VECTORS
        rounds = (n_panels + together - 1) // together
        one_panel = 4 * ROWS * chunk
        panels = tile + FLOAT_SPACE
        sums = panels + together * one_panel
        panel_sums = (n_tokens + TOKENS - 1) // TOKENS * TOKENS * 4 * ROWS
        for turn in range(rounds):
            begin = n_panels * turn // rounds
            count = n_panels * (turn + 1) // rounds - begin
            index = first + VECTORS * begin
            for start in range(0, columns, chunk):
                n = min(chunk, columns - start)
                for i in range(count):
                    row = (index + i * VECTORS) * PANEL_ROWS
                    unpack(weights + start * size, row_bytes, row, n_rows, n, panels + i * one_panel)
                for t in range(0, n_tokens, TOKENS):
                    tokens = min(TOKENS, n_tokens - t)
                    for k in range(TOKENS):
                        x = arg(args, at.x) + (t + min(k, tokens - 1)) * x_stride + 4 * start
                        _copy(x, tile + k * FLOAT_STRIDE, n)
                    for i in range(count):
                        begun = sums + i * panel_sums + 4 * ROWS * t
                        if start == 0:
                            _clear(begun)
                        _multiply(begun, panels + i * one_panel, tile, n)
                        if start + n == columns:
                            here = index + i * VECTORS
                            out = arg(args, at.out) + t * out_stride + 64 * here
                            _store(begun, out, out_stride, tokens, min(VECTORS, last - here), add)

    return step(panel)


def __getattr__(key: str) -> Any:
    """The kernel of a type, made when it is asked for."""
    return _make(TABLE[key], functions_of(key))
