"""F64, F32, F16 and BF16 weights: they meet the activations as float32, unquantized."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from llmgen.backends.cpu.kernels import half
from llmgen.backends.cpu.kernels.abi import inline
from llmgen.backends.cpu.kernels.quants.block import Floats, Row
from llmgen.backends.cpu.kernels.quants.vectors import keep_lanes, load_u16
from llmgen.backends.cpu.kernels.simd import (
    bfloat_to_f32x16,
    f32x8,
    f32x16,
    fma,
    half_to_f32x16,
    i8x32,
    i32x8,
    load_f16,
    load_f32,
    load_f32x16,
    load_i8x32,
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


def _floats(size: int, load16: Any, load1: Any, load8: Any) -> Floats:
    """A type of ``size`` bytes, given how 16 of them, how one, and how eight of them are loaded as float32."""

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

    return Floats(Row(unpack, fold, finish, unpack_tail), load1, load8, dequantize)


def _eight(kind: Any, widen: Any) -> Any:
    """``f(p)``, i8x32: eight numbers of an LLVM type at p, as ``widen(builder, vector)`` makes them float32."""
    vec = ir.VectorType(kind, 8)

    def emit(b: Any, p: Any) -> Any:
        return b.bitcast(widen(b, b.load(pointer(b, p), align=1, typ=vec)), i8x32.llvm)

    return unary(types.intp, i8x32, emit)


def _doubles_to_floats(b: Any, v: Any) -> Any:
    return b.fptrunc(v, f32x8.llvm)


def _bfloats_to_floats(b: Any, v: Any) -> Any:
    return b.shl(b.zext(v, i32x8.llvm), ir.Constant(i32x8.llvm, [16] * 8))


_I16 = ir.IntType(16)
F64 = _floats(8, _load_f64(f32x16), _load_f64(types.float32), _eight(ir.DoubleType(), _doubles_to_floats))
F32 = _floats(4, _load16_f32, load_f32, load_i8x32)
F16 = _floats(2, _load16_f16, load_f16, _eight(_I16, half.extend))
BF16 = _floats(2, _load16_bf16, _load1_bf16, _eight(_I16, _bfloats_to_floats))
