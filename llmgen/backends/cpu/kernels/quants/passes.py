"""One pass of the panel kernel: a panel of 16 rows times a few tokens, all sums in registers.

``pass_of`` gives the pass for a kind of weights.  At level amx it takes 16 tokens, whose
dot products with 32 weights of all rows are one tile; at the others dot.TOKENS.  Each
token's sum runs over the blocks in order, as scaling.py says, whatever the level.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from llmgen.backends.cpu.kernels import amx, arm
from llmgen.backends.cpu.kernels.abi import inline
from llmgen.backends.cpu.kernels.dot import ARM, FUSED, LEVEL, TOKENS, PanelDots, joined
from llmgen.backends.cpu.kernels.layout import (
    PAIR_BLOCK,
    PAIR_D,
    PAIR_E,
    PAIR_E0,
    PAIR_E1,
    TILE_BLOCK,
    TILE_D,
    TILE_E,
    TILE_E0,
    TILE_E1,
    TILE_NEG,
    TILE_TOKENS,
)
from llmgen.backends.cpu.kernels.quants import QuantType
from llmgen.backends.cpu.kernels.quants.products import scaled_dots
from llmgen.backends.cpu.kernels.quants.scaling import (
    Places,
    Scaling,
    one_scale,
    scaled,
    scaling_of,
    two_scales,
)
from llmgen.backends.cpu.kernels.simd import (
    f32x8,
    f32x16,
    i32x16,
    offset,
    permute,
    pointer,
)

TILED = LEVEL == "amx"
PASS = 2 * TILE_TOKENS if TILED else TOKENS
"""Tokens of a pass."""
SIGNED = TILED or ARM
"""Products take signed weights, so zero points are taken off when a panel is unpacked, not from each sum."""
_SUMS = types.UniTuple(f32x16, PASS)
IN_TILE, IN_PAIR = Places(TILE_D, TILE_E, TILE_E0, TILE_E1), Places(PAIR_D, PAIR_E, PAIR_E0, PAIR_E1)


def zeros(n: int) -> Any:
    """``zeros()``: n times f32x16, all zero."""
    kind = types.UniTuple(f32x16, n)

    @intrinsic
    def function(typing_context: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            return context.make_tuple(b, kind, [ir.Constant(f32x16.llvm, [0.0] * 16)] * n)

        return kind(), generate

    return function


zero_sums = zeros(PASS)


@intrinsic
def load_sums(typing_context: Any, address: Any) -> Any:
    """PASS times f32x16 from memory, one behind the other."""

    def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
        rows = [
            b.load(pointer(b, offset(b, args[0], 64 * t)), align=64, typ=f32x16.llvm) for t in range(PASS)
        ]
        return context.make_tuple(b, _SUMS, rows)

    return _SUMS(types.intp), generate


@inline
def activations_of(x, t, blocks, start):  # type: ignore[no-untyped-def]
    """Where a pass from token t on, over blocks of 32 from ``start`` on, finds its activations."""
    if TILED:
        return x + (t // PASS * blocks + start) * PAIR_BLOCK
    return x + (t // TILE_TOKENS * blocks + start) * TILE_BLOCK + 4 * (t % TILE_TOKENS)


def pass_of(quant: QuantType, has_offset: bool, zero: int) -> Any:
    """``multiply(f, panel, x, n, groups, space)``: n blocks of 32 weights, less ``zero``, added to the sums f.

    Where products take ``SIGNED`` weights, ``zero`` must be 0.  groups: how many groups of four weights one
    inner loop takes at level generic (``QuantType.groups``).  It is an argument because the compiler, if it
    knew the number, would unroll the loop, put all groups of a token together, and spill the weights.
    space: layout.PANEL_SPACE bytes.
    """
    if TILED:
        return _tiled_pass(quant, has_offset)
    if ARM:
        return _arm_pass(quant, has_offset)
    add_block, panel_bytes = _block_step(quant, has_offset, zero), quant.panel_bytes

    @inline
    def multiply(f, panel, x, n, groups, space):  # type: ignore[no-untyped-def]
        for _ in range(n):
            f = add_block(f, panel, x, groups)
            panel += panel_bytes
            x += TILE_BLOCK
        return f

    return multiply


_HALF_SUMS = types.UniTuple(f32x8, PASS)


def _arm_pass(quant: QuantType, has_offset: bool) -> Any:
    """The pass on Arm: eight rows, then the other eight, for whose sums and dots 32 registers of 128 bits suffice."""
    first_eight, others = (_arm_blocks(quant, has_offset, half) for half in range(2))
    lower, upper = _half_of(0), _half_of(8)

    @inline
    def multiply(f, panel, x, n, groups, space):  # type: ignore[no-untyped-def]
        return _joined(first_eight(lower(f), panel, x, n), others(upper(f), panel + arm.ROW_BYTES, x, n))

    return multiply


def _arm_blocks(quant: QuantType, has_offset: bool, half: int) -> Any:
    """``over_blocks(f, panel, x, n)``: n blocks of 32 weights of one half of the rows, added to their sums f."""
    add_block, panel_bytes = _arm_step(quant, has_offset, half), quant.panel_bytes

    @inline
    def over_blocks(f, panel, x, n):  # type: ignore[no-untyped-def]
        for _ in range(n):
            f = add_block(f, panel, x)
            panel += panel_bytes
            x += TILE_BLOCK
        return f

    return over_blocks


def _arm_step(quant: QuantType, has_offset: bool, half: int) -> Any:
    """``step(f, panel, x)``: one of these blocks."""
    scales = 512 + (32 - arm.ROW_BYTES) * half
    how, runs = scaling_of(quant, has_offset, IN_TILE), 1 + quant.two_scales

    @intrinsic
    def step(typing_context: Any, f: Any, panel: Any, x: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            packed, panel, x = args
            sums = [b.extract_value(packed, t) for t in range(PASS)]
            dots = [
                arm.emit_dots(b, offset(b, panel, 256 * run), offset(b, x, 128 * run), 32 // runs)
                for run in range(runs)
            ]
            by_token = [list(of_token) for of_token in zip(*dots, strict=True)]
            sums = scaled(b, sums, by_token, offset(b, panel, scales), x, how)
            return context.make_tuple(b, _HALF_SUMS, sums)

        return _HALF_SUMS(_HALF_SUMS, *[types.intp] * 2), generate

    return step


def _half_of(first: int) -> Any:
    """``f(sums)``: those of the rows first to first + 7."""

    @intrinsic
    def function(typing_context: Any, sums: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            rows = range(first, first + 8)
            parts = [permute(b, b.extract_value(args[0], t), rows) for t in range(PASS)]
            return context.make_tuple(b, _HALF_SUMS, parts)

        return _HALF_SUMS(_SUMS), generate

    return function


@intrinsic
def _joined(typing_context: Any, low: Any, high: Any) -> Any:
    """The sums of 16 rows."""

    def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
        pairs = [[b.extract_value(part, t) for part in args] for t in range(PASS)]
        return context.make_tuple(b, _SUMS, [permute(b, v, range(16), u) for v, u in pairs])

    return _SUMS(_HALF_SUMS, _HALF_SUMS), generate


_ONE, _TWO = 1024, 2048
"""Bytes of a tile of dot products, and of two."""


def _tiled_pass(quant: QuantType, has_offset: bool) -> Any:
    """The pass at level amx: while two tiles' dot products are scaled, the next two are computed.

    What has just been stored can only be read after a while.  A pair of tiles belongs to two blocks,
    or to the halves of one.  No branch stands between products and scaling: around one, the compiler
    would keep the sums of both sides apart, and spill them.
    """
    how = scaling_of(quant, has_offset, IN_PAIR)
    return (_tiled_halves if quant.two_scales else _tiled_blocks)(quant.panel_bytes, how)


def _tiled_halves(panel_bytes: int, how: Scaling) -> Any:
    dots, other_dots = (amx.dots(one_set) for one_set in range(amx.SETS))
    scale, scale_others = (
        two_scales(_SUMS, types.intp, _stored_dots, how, range(first, first + PASS // 2))
        for first in (0, PASS // 2)
    )

    @inline
    def multiply(f, panel, x, n, groups, space):  # type: ignore[no-untyped-def]
        here, there = space + 64, space + 64 + _TWO
        dots(x, panel, here)
        other_dots(x + 16, panel + 256, here + _ONE)
        for _ in range(n - 1):
            after, x_after = panel + panel_bytes, x + PAIR_BLOCK
            dots(x_after, after, there)
            f = scale(f, here, here + _ONE, panel + 512, x)
            other_dots(x_after + 16, after + 256, there + _ONE)
            f = scale_others(f, here, here + _ONE, panel + 512, x)
            panel, x, here, there = after, x_after, there, here
        f = scale(f, here, here + _ONE, panel + 512, x)
        return scale_others(f, here, here + _ONE, panel + 512, x)

    return multiply


def _tiled_blocks(panel_bytes: int, how: Scaling) -> Any:
    dots, other_dots = (amx.dots(one_set) for one_set in range(amx.SETS))
    scale = one_scale(_SUMS, types.intp, _stored_dots, how)

    @inline
    def multiply(f, panel, x, n, groups, space):  # type: ignore[no-untyped-def]
        here, there = space + 64, space + 64 + _TWO
        second, x_second = panel_bytes, PAIR_BLOCK
        lone, x_lone = panel + (n - 1) * panel_bytes, x + (n - 1) * PAIR_BLOCK
        if n > 1:
            dots(x, panel, here)
            other_dots(x + x_second, panel + second, here + _ONE)
            for _ in range(n // 2 - 1):
                after, x_after = panel + 2 * panel_bytes, x + 2 * PAIR_BLOCK
                dots(x_after, after, there)
                f = scale(f, here, panel + 512, x)
                other_dots(x_after + x_second, after + second, there + _ONE)
                f = scale(f, here + _ONE, panel + second + 512, x + x_second)
                panel, x, here, there = after, x_after, there, here
            f = scale(f, here, panel + 512, x)
            f = scale(f, here + _ONE, panel + second + 512, x + x_second)
        if n % 2:
            dots(x_lone, lone, there)
            f = scale(f, there, lone + 512, x_lone)
        return f

    return multiply


def _stored_dots(b: Any, tile: Any, t: int) -> Any:
    """The dot products of a token, i32x16, of a tile that was stored."""
    return b.load(pointer(b, offset(b, tile, 64 * t)), align=64, typ=i32x16.llvm)


def _block_step(quant: QuantType, has_offset: bool, zero: int) -> Any:
    """``step(f, weights, x, groups)``: add one block of 32 weights to the sums f."""
    how = scaling_of(quant, has_offset, IN_TILE)
    if quant.product_bits and not FUSED:
        totals, dots = scaled_dots(quant, zero)
        return _one_scale_step(totals, dots, how)
    totals, first, second = _dots(quant, zero)
    if not quant.two_scales:
        return _one_scale_step(totals, first, how)
    scale = two_scales(_SUMS, totals, joined, how, range(PASS))

    @inline
    def step(f, w, x, groups):  # type: ignore[no-untyped-def]
        return scale(f, first(w, x, groups), second(w + 256, x, groups), w + 512, x)

    return step


def _one_scale_step(totals: Any, dots: Any, how: Scaling) -> Any:
    scale = one_scale(_SUMS, totals, joined, how)

    @inline
    def step(f, w, x, groups):  # type: ignore[no-untyped-def]
        return scale(f, dots(w, x, groups), w + 512, x)

    return step


def _dots(quant: QuantType, zero: int) -> tuple[Any, Any, Any]:
    """The totals' type, and two functions ``f(w, x, groups)``.

    They give the totals of a block of activations at x and the weights at w: of all 32 or, with two scales, the first
    16; the second function those of the last 16.
    """
    per_scale = 4 if quant.two_scales else 8
    inner = per_scale if FUSED else quant.groups
    dots = PanelDots(quant.panel_bits, inner, zero, quant.two_scales)
    begin, begin_second, start, add, total = dots.first, dots.second, dots.start, dots.add, dots.total
    one_by_one = dots.at_once < inner

    @inline
    def run(totals, w, x, groups):  # type: ignore[no-untyped-def]
        """The groups of one scale."""
        for g in range(0, per_scale, inner):
            sums = start(x + TILE_NEG - 32 * g)
            if FUSED:  # sums are as wide as totals, so there is nothing to add up afterwards
                sums = total(totals, sums)
            for i in range(groups if one_by_one else 1):
                sums = add(sums, w + 64 * (g + i), x + 32 * (g + i))
            totals = sums if FUSED else total(totals, sums)
        return totals

    @inline
    def first(w, x, groups):  # type: ignore[no-untyped-def]
        return run(begin(x), w, x, groups)

    @inline
    def second(w, x, groups):  # type: ignore[no-untyped-def]
        return run(begin_second(x), w, x + 128, groups)

    return dots.totals, first, second
