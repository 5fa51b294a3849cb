"""From the dot products of a panel's rows, which are integers, to its sums, which are floats.

Of each token and for every 32 weights:

    one scale     sum += d * dx * dot                        (+ m * e)
    two of them   sum += dx * (d0 * dot0 + d1 * dot1)        (+ m0 * e0 + m1 * e1)

dx and e belong to the token, d and the offsets m to the row.  With two scales, of 16 weights each, dx is multiplied
once for both, and costs no operation of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from llmgen.backends.cpu.kernels.quants import QuantType
from llmgen.backends.cpu.kernels.simd import call_intrinsic, offset, pointer, splat_value


class Places(NamedTuple):
    """Where a block of activations has, for each token, dx, and e of all 32, of the first and of the last 16."""

    d: int
    e: int
    e0: int
    e1: int


class Scaling(NamedTuple):
    """How the dot products of a type are scaled."""

    n_scales: int  # of 32 weights; the second stands 128 bytes behind the first
    offsets: tuple[tuple[int, int], ...]  # of each: its place behind the first scale, and that of its e
    d: int  # the place of dx


def scaling_of(quant: QuantType, has_offset: bool, at: Places) -> Scaling:
    """Of a type whose activations are laid out like this."""
    offsets = ((64, at.e0), (192, at.e1)) if quant.halves else ((64, at.e),)
    return Scaling(1 + quant.two_scales, offsets if has_offset else (), at.d)


def scaled(b: Any, before: list[Any], dots: list[list[Any]], d: Any, x: Any, how: Scaling) -> list[Any]:
    """The sums of some tokens, f32 [rows] each, and what 32 weights add to them.

    dots: of each token one or two; d: address of the scales f32 [rows]; x: address of the first token's activations.
    """
    vector = before[0].type
    scales = [_rows(b, offset(b, d, 128 * i), vector) for i in range(how.n_scales)]
    lows = [(_rows(b, offset(b, d, at), vector), e) for at, e in how.offsets]
    sums = []
    for t, (value, integers) in enumerate(zip(before, dots, strict=True)):
        floats = [b.sitofp(dot, vector) for dot in integers]
        dx = _of_token(b, offset(b, x, how.d), t, vector)
        if len(floats) == 1:
            value = _fma(b, floats[0], b.fmul(scales[0], dx), value)
        else:
            both = _fma(b, floats[1], scales[1], b.fmul(floats[0], scales[0]))
            value = _fma(b, both, dx, value)
        for low, e in lows:
            value = _fma(b, low, _of_token(b, offset(b, x, e), t, vector), value)
        sums.append(value)
    return sums


def _fma(b: Any, x: Any, y: Any, z: Any) -> Any:
    return call_intrinsic(b, f"llvm.fma.v{z.type.count}f32", z.type, [x, y, z])


def _rows(b: Any, address: Any, vector: Any) -> Any:
    """A float of each row."""
    return b.load(pointer(b, address), align=4, typ=vector)


def _of_token(b: Any, address: Any, t: int, vector: Any) -> Any:
    value = b.load(pointer(b, offset(b, address, 4 * t)), align=4, typ=ir.FloatType())
    return splat_value(b, value, vector)


DotsOf = Callable[[Any, Any, int], Any]
"""The dot products of a token, i32 [rows], out of what a step is given: ``(builder, given, token)``."""


def one_scale(sums: Any, totals: Any, dots_of: DotsOf, how: Scaling) -> Any:
    """``step(f, totals, d, x)``: f, of type ``sums``, and what a block adds; d, x: as for ``scaled``."""

    @intrinsic
    def step(typing_context: Any, f: Any, dots: Any, d: Any, x: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            before = [b.extract_value(args[0], t) for t in range(sums.count)]
            dots = [[dots_of(b, args[1], t)] for t in range(sums.count)]
            return context.make_tuple(b, sums, scaled(b, before, dots, args[2], args[3], how))

        return sums(sums, totals, types.intp, types.intp), generate

    return step


def two_scales(sums: Any, totals: Any, dots_of: DotsOf, how: Scaling, tokens: range) -> Any:
    """``step(f, first, second, d, x)``: the same with the totals of both halves of a block, for these tokens."""

    @intrinsic
    def step(typing_context: Any, f: Any, first: Any, second: Any, d: Any, x: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            out = [b.extract_value(args[0], t) for t in range(sums.count)]
            dots = [[dots_of(b, half, t) for half in args[1:3]] for t in tokens]
            some = slice(tokens.start, tokens.stop)
            out[some] = scaled(b, out[some], dots, args[3], offset(b, args[4], 4 * tokens.start), how)
            return context.make_tuple(b, sums, out)

        return sums(sums, totals, totals, types.intp, types.intp), generate

    return step
