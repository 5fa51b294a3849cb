"""Rows of keys, values and queries of any size, read as whole vectors."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from llmgen.backends.cpu.kernels.abi import inline
from llmgen.backends.cpu.kernels.kv import VECTOR
from llmgen.backends.cpu.kernels.simd import (
    I32,
    call_intrinsic,
    f32x16,
    i32x16,
    max_f32x16,
    maximum,
    pointer,
    splat_value,
    zero_f32x16,
)


@intrinsic
def load_first(typing_context: Any, address: Any, n: Any) -> Any:
    """f32x16: up to 16 floats, of which the first n are there; zeros behind them."""

    def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
        lanes = ir.Constant(i32x16.llvm, list(range(16)))
        mask = b.icmp_signed("<", lanes, splat_value(b, b.trunc(args[1], I32), i32x16.llvm))
        zeros = ir.Constant(f32x16.llvm, [0.0] * 16)
        arguments = [pointer(b, args[0]), ir.Constant(I32, 4), mask, zeros]
        return call_intrinsic(b, "llvm.masked.load.v16f32.p0", f32x16.llvm, arguments)

    return f32x16(types.intp, types.int64), generate


@inline
def larger(a, b):  # type: ignore[no-untyped-def]
    """The larger of both, or the one that is a NaN."""
    return a if a > b or a != a else b


@inline
def extent(x, n):  # type: ignore[no-untyped-def]
    """The largest of n floats at x, and the largest of their negatives, at least 0; a NaN is the largest of all."""
    top, bottom = zero_f32x16(), zero_f32x16()
    for i in range(0, n, VECTOR):
        v = load_first(x + 4 * i, n - i)
        top, bottom = maximum(top, v), maximum(bottom, zero_f32x16() - v)
    return max_f32x16(top), max_f32x16(bottom)
