"""Small integer scales of 16 weights (Q2_K, Q3_K): applied to integers, so that 32 weights need one scale of floats.

    w = d * small * (q - zero)  (- offset)

Weights times their small scales fit 8 bits.  Where one instruction multiplies and adds into 32 bits, a panel
holds these products instead of the weights.  Elsewhere they would leave no room for sums in 16 bits: there the panel
holds the weights, and what widens the sums of a half to 32 bits multiplies them by its small scale at no cost.
Both are exact, so the integers are the same.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from llmgen.backends.cpu.kernels.abi import inline
from llmgen.backends.cpu.kernels.dot import (
    FUSED,
    REGISTERS,
    TOKENS,
    WIDTH,
    PanelDots,
    emit_int32,
    pairs_times,
)
from llmgen.backends.cpu.kernels.layout import TILE_NEG, TILE_NEG0
from llmgen.backends.cpu.kernels.quants import QuantType
from llmgen.backends.cpu.kernels.simd import (
    I32,
    Vec,
    i8x32,
    i16x16,
    offset,
    pointer,
    splat_value,
    store_i32,
    ternary,
)

SCALES = (640, 768)
"""Where a panel has the small scales of the first 16 weights, and of the last 16, see layout.PANEL_PRODUCTS."""


# ---- products in the panel -----------------------------------------------------------------


def _times(bits: int) -> Any:
    """``f(v, first, second)``: bytes times small numbers: the first 16 by one number, the others by the second.

    bits: of the products; fewer than eight are unsigned.
    """
    kind = i16x16.llvm

    def emit(b: Any, v: Any, first: Any, second: Any) -> Any:
        halves = [
            splat_value(b, b.trunc(n, ir.IntType(16)), ir.VectorType(ir.IntType(16), 8))
            for n in (first, second)
        ]
        factors = b.shuffle_vector(*halves, ir.Constant(ir.VectorType(I32, 16), list(range(16))))
        pairs = b.bitcast(v, kind)
        both = b.mul(pairs, factors)
        if bits < 8:  # the lower product of a pair stays below 256, out of the upper one
            return b.bitcast(both, i8x32.llvm)
        lower = b.and_(both, ir.Constant(kind, [0xFF] * 16))
        upper = b.mul(b.and_(pairs, ir.Constant(kind, [-256] * 16)), factors)
        return b.bitcast(b.or_(lower, upper), i8x32.llvm)

    return ternary((i8x32, types.int64, types.int64), i8x32, emit)


def products(weights: Any, small_scales: Any, bits: int) -> Any:
    """``f(p, j)``: the j-th 32 weights of the block at p, times their small scales: products of ``bits`` bits."""
    times = _times(bits)

    @inline
    def multiplied(p, j):  # type: ignore[no-untyped-def]
        first, second = small_scales(p, j)
        return times(weights(p, j), first, second)

    return multiplied


# ---- or beside the weights -----------------------------------------------------------------


def storing(small_scales: Any, blocks: int) -> Any:
    """``f(p, o, stride)``: those of a row's block at p to o, which is the row's place among a panel's scales d."""
    first_at, second_at = (at - 512 for at in SCALES)

    @inline
    def store(p, o, stride):  # type: ignore[no-untyped-def]
        for j in range(blocks):
            first, second = small_scales(p, j)
            store_i32(o + first_at, (first & 0xFFFF) * 0x10001)
            store_i32(o + second_at, (second & 0xFFFF) * 0x10001)
            o += stride

    return store


def scaled_dots(quant: QuantType, zero: int) -> tuple[Any, Any]:
    """The totals' type, and ``f(w, x, groups)``: those of a block, with small scales beside its weights at w.

    A zero point is where the 16-bit sums of a half begin: at most 4 * 16 * 127, beside 4 * 2 * 7 * 127 of products.
    """
    assert not FUSED
    assert zero * 16 * 127 + 4 * 2 * ((1 << quant.bits) - 1) * 127 < 1 << 15
    dots = PanelDots(quant.bits, 4, 0, True)
    nothing, add, one_by_one = dots.first, dots.add, dots.at_once < 4
    first, second = (_beginning(dots, zero, which) for which in range(2))
    total, first_scales, second_scales = _scaled_total(dots), *SCALES

    @inline
    def half(totals, sums, w, x, scales, groups):  # type: ignore[no-untyped-def]
        for i in range(groups if one_by_one else 1):
            sums = add(sums, w + 64 * i, x + 32 * i)
        return total(totals, sums, scales)

    @inline
    def run(w, x, groups):  # type: ignore[no-untyped-def]
        totals = half(nothing(x), first(x), w, x, w + first_scales, groups)
        return half(totals, second(x), w + 256, x + 128, w + second_scales, groups)

    return dots.totals, run


def _beginning(dots: PanelDots, zero: int, half: int) -> Any:
    """``f(x)``: the sums of a half of the block at x before any product: minus its zero point, in one of two lanes."""
    sums = dots.sums

    @intrinsic
    def begin(typing_context: Any, x: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            values = []
            for t in range(TOKENS):
                less = emit_int32(b, args[0], TILE_NEG0 + 4 * t)
                if half:
                    less = b.sub(emit_int32(b, args[0], TILE_NEG + 4 * t), less)
                less = b.and_(b.mul(less, ir.Constant(I32, zero)), ir.Constant(I32, 0xFFFF))
                value = b.bitcast(splat_value(b, less, dots.totals.dtype.llvm), sums.dtype.llvm)
                values += [value] * REGISTERS
            return context.make_tuple(b, sums, values)

        return sums(types.intp), generate

    return begin


def _scaled_total(dots: PanelDots) -> Any:
    """``f(totals, sums, scales)``: totals += the sums in 16 bits, times the rows' small scales at an address."""
    kind = Vec("i16", WIDTH // 2).llvm

    @intrinsic
    def total(typing_context: Any, before: Any, sums: Any, scales: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            factors = [
                b.load(pointer(b, offset(b, args[2], WIDTH * r)), align=1, typ=kind) for r in range(REGISTERS)
            ]
            out = []
            for i in range(dots.totals.count):
                wide = pairs_times(b, b.extract_value(args[1], i), factors[i % REGISTERS])
                out.append(b.add(b.extract_value(args[0], i), wide))
            return context.make_tuple(b, dots.totals, out)

        return dots.totals(dots.totals, dots.sums, types.intp), generate

    return total
