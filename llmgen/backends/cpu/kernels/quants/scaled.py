"""Types that are told by their weights as small integers, and a scale for every 16 of them.

    w = scale * (q - zero)  (- offset)

From these, what all three kernels do with a block follows.  For generated tokens a step
takes 256 weights, be they one block or several: dots of integers, which are exact, then
one multiplication for each run of four products.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from llmgen.backends.cpu.kernels.abi import inline
from llmgen.backends.cpu.kernels.dot import FUSED, row_dot
from llmgen.backends.cpu.kernels.quants import TABLE
from llmgen.backends.cpu.kernels.quants.block import Block, Lanes, Row
from llmgen.backends.cpu.kernels.quants.pairs import GATHERS
from llmgen.backends.cpu.kernels.quants.products import storing
from llmgen.backends.cpu.kernels.quants.vectors import join_i8x32, keep_lanes
from llmgen.backends.cpu.kernels.simd import (
    I32,
    Vec,
    binary,
    f32x16,
    fma,
    i8x32,
    i32x16,
    load_f32x16,
    load_i8x64,
    offset,
    permute,
    pointer,
    shuffle,
    splat_value,
    store_f32,
    sum_f32x16,
    to_float,
)

STEP = 256
"""Weights of a step."""

Function = Callable[..., Any]


def scaled(
    key: str,
    weights: Function,
    scales: Function,
    offsets: Function | None = None,
    zero: int = 0,
    dot: Lanes | None = None,
    pairs: Function | None = None,
    scales_of_step: Function | None = None,
    small_scales: Function | None = None,
    scale: Function | None = None,
) -> Block:
    """The functions of a type.

    weights: (p, j) -> i8x32, the j-th 32 weights of the block at p: unsigned and of the bits
    that ``TABLE`` says, or for 8 bits signed.  scales, offsets: (p) -> float32, one for every 16
    weights of the block.  dot: for blocks of 32 weights, how rows side by side meet a token.
    pairs: (p, i) -> i8x64, the i-th 64 weights, if that is quicker than twice 32: for a single row, and at level
    amx for panels, too.
    scales_of_step: (p, n) -> f32x16, of the first n blocks of a step, if that is quicker than block after
    block; behind them may be anything.  small_scales, scale: of types with ``product_bits``, whose scales
    are products: (p, j) -> the integers of the halves of the j-th 32 weights, and (p) -> what they multiply.
    None of them may read outside of the block.  Raises ValueError where ``product_bits`` are without these two,
    or these without ``product_bits``.
    """
    has_products = TABLE[key].product_bits > 0
    if {has_products} != {small_scales is not None, scale is not None}:
        raise ValueError(f"{key}: product_bits, small_scales and scale come together or not at all")
    per_block = Vec("f32", TABLE[key].block // 16)
    return Block(
        dot=dot or _row(key, weights, scales, offsets, zero, pairs, scales_of_step),
        weights=weights,
        panel_scales=_common_scales(per_block, small_scales, scale, offsets)
        if small_scales is not None and scale is not None
        else _panel_scales(key, per_block, scales, offsets),
        dequantize=_dequantize(key, per_block, weights, scales, offsets, zero),
        has_offset=offsets is not None,
        zero=zero,
        small_scales=small_scales,
        pairs=pairs if GATHERS else None,
    )


# ---- a row and a generated token ---------------------------------------------------------

quads0, quads1, quads2, quads3 = (shuffle(f32x16, [4 * i + k // 4 for k in range(16)]) for i in range(4))


def _row(
    key: str,
    weights: Function,
    scales: Function,
    offsets: Function | None,
    zero: int,
    pairs: Function | None,
    scales_of_step: Function | None,
) -> Row:
    block, nbytes = TABLE[key].block, TABLE[key].block_bytes
    dot = row_dot(TABLE[key].bits, zero)
    scales_of_step = scales_of_step or _over_blocks(scales, block, nbytes)
    offsets_of_step = _over_blocks(offsets or scales, block, nbytes)
    has_offset, has_tail = offsets is not None, block < STEP

    two = _in_blocks(pairs, block, nbytes) if pairs else _from_halves(weights, block, nbytes)

    @inline
    def unpack(p):  # type: ignore[no-untyped-def]
        s = scales_of_step(p, STEP)
        m = offsets_of_step(p, STEP) if has_offset else s
        return s, m, two(p, 0, STEP), two(p, 1, STEP), two(p, 2, STEP), two(p, 3, STEP)

    @inline
    def unpack_tail(p, n):  # type: ignore[no-untyped-def]
        s = keep_lanes(scales_of_step(p, n), n * block // 16)
        m = keep_lanes(offsets_of_step(p, n), n * block // 16) if has_offset else s
        return s, m, two(p, 0, n), two(p, 1, n), two(p, 2, n), two(p, 3, n)

    @inline
    def fold(u, x, a, m):  # type: ignore[no-untyped-def]
        s, low, v0, v1, v2, v3 = u
        if has_offset:
            m = fma(low, load_f32x16(x + 384), m)
        v = s * load_f32x16(x + 320)
        a = fma(to_float(dot(v0, load_i8x64(x))), quads0(v), a)
        a = fma(to_float(dot(v1, load_i8x64(x + 64))), quads1(v), a)
        a = fma(to_float(dot(v2, load_i8x64(x + 128))), quads2(v), a)
        return fma(to_float(dot(v3, load_i8x64(x + 192))), quads3(v), a), m

    @inline
    def finish(a, m):  # type: ignore[no-untyped-def]
        return sum_f32x16(a) - sum_f32x16(m) if has_offset else sum_f32x16(a)

    return Row(unpack, fold, finish, unpack_tail if has_tail else None)


def _from_halves(weights: Function, block: int, nbytes: int) -> Function:
    """``f(p, i, n)``: the weights 64 i .. 64 i + 63 of a step; of a block behind the n-th those of the first."""
    per_block = block // 32

    @inline
    def two(p, i, n):  # type: ignore[no-untyped-def]
        first, second = 2 * i // per_block, (2 * i + 1) // per_block
        first, second = (first if first < n else 0), (second if second < n else 0)
        low = weights(p + first * nbytes, 2 * i % per_block)
        return join_i8x32(low, weights(p + second * nbytes, (2 * i + 1) % per_block))

    return two


def _in_blocks(pairs: Function, block: int, nbytes: int) -> Function:
    """The same from 64 weights at a time."""
    per_block = block // 64

    @inline
    def two(p, i, n):  # type: ignore[no-untyped-def]
        which = i // per_block
        return pairs(p + (which if which < n else 0) * nbytes, i % per_block)

    return two


def _over_blocks(values: Function, block: int, nbytes: int) -> Function:
    """``f(p, n)``, f32x16: the values of all blocks of a step; of a block behind the n-th those of the first."""
    join_two, join_all = _joined(Vec("f32", block // 16)), _joined(Vec("f32", block // 8))

    @inline
    def of_one(p, n):  # type: ignore[no-untyped-def]
        return values(p)

    @inline
    def of_two(p, n):  # type: ignore[no-untyped-def]
        return join_two(values(p), values(p + (nbytes if n > 1 else 0)))

    @inline
    def of_four(p, n):  # type: ignore[no-untyped-def]
        first = join_two(values(p), values(p + (nbytes if n > 1 else 0)))
        third, fourth = p + (2 * nbytes if n > 2 else 0), p + (3 * nbytes if n > 3 else 0)
        return join_all(first, join_two(values(third), values(fourth)))

    return {1: of_one, 2: of_two, 4: of_four}[STEP // block]


def _joined(vec: Vec) -> Any:
    """``f(v, w)``: twice as many lanes."""
    return binary(vec, vec, Vec("f32", 2 * vec.n), lambda b, v, w: permute(b, v, range(2 * vec.n), w))


# ---- a panel, and a row as it is -----------------------------------------------------------


def _panel_scales(key: str, vec: Vec, scales: Function, offsets: Function | None) -> Function:
    halves = TABLE[key].halves
    store, store_negative = _scale_storer(vec, halves, 0), _scale_storer(vec, halves, 64)
    has_offset, low = offsets is not None, offsets or scales

    @inline
    def panel_scales(p, o, stride):  # type: ignore[no-untyped-def]
        store(o, stride, scales(p))
        if has_offset:
            store_negative(o, stride, low(p))

    return panel_scales


def _common_scales(vec: Vec, small_scales: Function, scale: Function, offsets: Function | None) -> Function:
    """Of a type with ``product_bits``: one scale for 32 weights, the offsets, and small scales where sums need them."""
    blocks, has_offset, low = vec.n // 2, offsets is not None, offsets or scale
    store_negative, store_small = _scale_storer(vec, True, 64), storing(small_scales, blocks)

    @inline
    def panel_scales(p, o, stride):  # type: ignore[no-untyped-def]
        d = scale(p)
        for j in range(blocks):
            store_f32(o + j * stride, d)
        if has_offset:
            store_negative(o, stride, low(p))
        if not FUSED:
            store_small(p, o, stride)

    return panel_scales


def _scale_storer(vec: Vec, halves: bool, at: int) -> Any:
    """``f(o, stride, values)``: those of every 32 weights ``stride`` further; at 64 (offsets) with the other sign."""

    @intrinsic
    def store(typing_context: Any, o: Any, stride: Any, values: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            o, stride, values = args
            values = b.fneg(values) if at else values
            for lane in range(0, vec.n, 1 if halves else 2):
                value = b.extract_element(values, ir.Constant(I32, lane))
                address = b.add(o, b.mul(stride, ir.Constant(stride.type, lane // 2)))
                place = pointer(b, offset(b, address, at + 128 * (lane % 2)))
                b.store(value, place, align=4)
            return context.get_dummy_value()

        return types.void(types.intp, types.intp, vec), generate

    return store


def _dequantize(
    key: str, vec: Vec, weights: Function, scales: Function, offsets: Function | None, zero: int
) -> Function:
    n, has_offset, low = TABLE[key].block // 32, offsets is not None, offsets or scales
    store = _value_storer(vec, zero, has_offset)

    @inline
    def dequantize(p, out):  # type: ignore[no-untyped-def]
        s = scales(p)
        m = low(p) if has_offset else s
        for j in range(n):
            store(out + 128 * j, weights(p, j), s, m, j)

    return dequantize


def _value_storer(vec: Vec, zero: int, has_offset: bool) -> Any:
    """``f(out, q, scales, offsets, j)``: the j-th 32 weights of a block as float32."""

    @intrinsic
    def store(typing_context: Any, out: Any, q: Any, scales: Any, offsets: Any, j: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            out, q, scales, offsets, j = args
            for half in range(2):
                lane = b.trunc(b.add(b.mul(j, ir.Constant(j.type, 2)), ir.Constant(j.type, half)), I32)
                wide = b.sext(permute(b, q, range(16 * half, 16 * half + 16)), i32x16.llvm)
                number = b.sitofp(b.sub(wide, ir.Constant(i32x16.llvm, [zero] * 16)), f32x16.llvm)
                value = b.fmul(number, splat_value(b, b.extract_element(scales, lane), f32x16.llvm))
                if has_offset:
                    low = splat_value(b, b.extract_element(offsets, lane), f32x16.llvm)
                    value = b.fsub(value, low)
                b.store(value, pointer(b, offset(b, out, 64 * half)), align=4)
            return context.get_dummy_value()

        return types.void(types.intp, i8x32, vec, vec, types.int64), generate

    return store
