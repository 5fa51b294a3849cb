"""F64, F32, F16 and BF16 weights: they meet the activations as float32, unquantized."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from llmgen.backends.cpu.kernels.abi import inline
from llmgen.backends.cpu.kernels.quants.block import Floats, Row
from llmgen.backends.cpu.kernels.quants.vectors import keep_lanes, load_u16
from llmgen.backends.cpu.kernels.simd import (
    bfloat_to_f32x16,
    f32x16,
    fma,
    half_to_f32x16,
    load_f16,
    load_f32,
    load_f32x16,
    load_i16x16,
    pointer,
    store_f32,
    sum_f32x16,
    unary,
)


def _bfloat(b: Any, v: Any) -> Any:
    return b.bitcast(b.shl(b.trunc(v, ir.IntType(32)), ir.Constant(ir.IntType(32), 16)), ir.FloatType())


_bits_to_float = unary(types.int64, types.float32, _bfloat)


@inline
def _load16_f32(p):  # type: ignore[no-untyped-def]
    return load_f32x16(p)


@inline
def _load16_f16(p):  # type: ignore[no-untyped-def]
    return half_to_f32x16(load_i16x16(p))


@inline
def _load16_bf16(p):  # type: ignore[no-untyped-def]
    return bfloat_to_f32x16(load_i16x16(p))


@inline
def _load1_bf16(p):  # type: ignore[no-untyped-def]
    return _bits_to_float(load_u16(p))


def _load_f64(floats: Any) -> Any:
    """``f(p)``: float64 rounded to float32, one or a vector."""
    llvm = getattr(floats, "llvm", ir.FloatType())
    doubles = ir.VectorType(ir.DoubleType(), floats.n) if floats is f32x16 else ir.DoubleType()
    return unary(
        types.intp, floats, lambda b, p: b.fptrunc(b.load(pointer(b, p), align=1, typ=doubles), llvm)
    )


def _floats(size: int, load16: Any, load1: Any) -> Floats:
    """A type of ``size`` bytes, given how 16 of them and how one is loaded as float32."""

    @inline
    def unpack(p):  # type: ignore[no-untyped-def]
        return load16(p), load16(p + 16 * size), load16(p + 32 * size), load16(p + 48 * size)

    @inline
    def unpack_tail(p, n):  # type: ignore[no-untyped-def]
        w0, w1, w2, w3 = unpack(p)
        return keep_lanes(w0, n), keep_lanes(w1, n - 16), keep_lanes(w2, n - 32), keep_lanes(w3, n - 48)

    @inline
    def fold(u, x, a, m):  # type: ignore[no-untyped-def]
        w0, w1, w2, w3 = u
        a = fma(w0, load_f32x16(x), a)
        m = fma(w1, load_f32x16(x + 64), m)
        return fma(w2, load_f32x16(x + 128), a), fma(w3, load_f32x16(x + 192), m)

    @inline
    def finish(a, m):  # type: ignore[no-untyped-def]
        return sum_f32x16(a + m)

    @inline
    def dequantize(p, out):  # type: ignore[no-untyped-def]
        store_f32(out, load1(p))

    return Floats(Row(unpack, fold, finish, unpack_tail), load1, dequantize)


F64 = _floats(8, _load_f64(f32x16), _load_f64(types.float32))
F32 = _floats(4, _load16_f32, load_f32)
F16 = _floats(2, _load16_f16, load_f16)
BF16 = _floats(2, _load16_bf16, _load1_bf16)
