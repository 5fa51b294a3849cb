"""MXFP4 and NVFP4: floats of four bits, whose scales are floats of eight.

Layouts and values (ggml-common.h, ggml-quants.c and ggml-impl.h of ggml; the OCP
Microscaling Formats specification):

    MXFP4  of 32: the scale as an exponent, 16 bytes of nibbles: byte j holds weight j below and j + 16 above
    NVFP4  of 64: 4 scales of 4 bits exponent and 3 bits fraction, one for 16 weights; for each of them 8 bytes
           of nibbles: byte j holds weight j below and j + 8 above

A code stands for twice the number that it is as a float, so the scales are halved.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from llmgen.backends.cpu.kernels import half
from llmgen.backends.cpu.kernels.abi import inline
from llmgen.backends.cpu.kernels.quants.lanes import i8_rows, nibble_codes
from llmgen.backends.cpu.kernels.quants.pairs import nibble_values64
from llmgen.backends.cpu.kernels.quants.scaled import scaled
from llmgen.backends.cpu.kernels.quants.vectors import lookup, nibbles32, splat_to
from llmgen.backends.cpu.kernels.simd import (
    I32,
    Vec,
    f32x16,
    i8x16,
    i8x32,
    i32x16,
    load_u8,
    load_u32,
    offset,
    permute,
    pointer,
    shuffle,
    unary,
    undefined,
)

f32x4 = Vec("f32", 4)

ZERO = 12
VALUES = tuple(ZERO + v for v in (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12))

values = lookup(VALUES)
splat2 = splat_to(Vec("f32", 2))


def _power_of_two(b: Any, e: Any) -> Any:
    """i32 (a scalar or a vector) -> 2^(e - 128) as float32, subnormal below 2."""
    const = lambda value: ir.Constant(e.type, value if e.type == I32 else [value] * e.type.count)  # noqa: E731
    small = b.shl(const(0x00200000), b.and_(e, const(1)))
    bits = b.select(b.icmp_signed("<", e, const(2)), small, b.shl(b.sub(e, const(1)), const(23)))
    return b.bitcast(bits, ir.FloatType() if e.type == I32 else ir.VectorType(ir.FloatType(), e.type.count))


def _power_of_bytes(b: Any, v: Any) -> Any:
    return _power_of_two(b, b.zext(v, ir.VectorType(I32, v.type.count)))


power_of_two = unary(types.int64, types.float32, lambda b, e: _power_of_two(b, b.trunc(e, I32)))


@inline
def _mx_weights(p, j):  # type: ignore[no-untyped-def]
    return values(nibbles32(p + 1))


@inline
def _mx_scales(p):  # type: ignore[no-untyped-def]
    return splat2(power_of_two(load_u8(p)))


MXFP4 = scaled(
    "mxfp4",
    _mx_weights,
    _mx_scales,
    zero=ZERO,
    dot=nibble_codes(1, VALUES, i8_rows, ir.IntType(8), _power_of_bytes, bits=5, zero=ZERO),
)


def _small_floats(b: Any, codes: Any) -> Any:
    """Bytes -> half of the unsigned floats that they are; the sign is ignored, 0x7F (NaN) is zero.

    Converted as half precision, which has the same fields and takes no time with subnormal numbers.
    """
    kind = ir.VectorType(ir.IntType(16), codes.type.count)
    const = lambda value: ir.Constant(kind, [value] * kind.count)  # noqa: E731
    codes = b.zext(codes, kind)
    bits = b.shl(b.and_(codes, const(0x7F)), const(7))
    floats = half.extend(b, b.select(b.icmp_signed("==", codes, const(0x7F)), const(0), bits))
    # the exponent's bias is 7, that of half precision is 15: 2^8 less one for the half
    return b.fmul(floats, ir.Constant(floats.type, [2.0**7] * kind.count))


_FOUR = ir.VectorType(ir.IntType(8), 4)
small_floats = unary(
    types.intp, f32x4, lambda b, p: _small_floats(b, b.load(pointer(b, p), align=1, typ=_FOUR))
)


@intrinsic
def _sixteen_floats(typing_context: Any, words: Any) -> Any:
    """The same of four times four bytes."""

    def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
        v = undefined(ir.VectorType(I32, 4))
        for i in range(4):
            v = b.insert_element(v, b.trunc(b.extract_value(args[0], i), I32), ir.Constant(I32, i))
        return _small_floats(b, b.bitcast(v, i8x16.llvm))

    return f32x16(types.UniTuple(types.int64, 4)), generate


def _of_four_blocks(b: Any, p: Any) -> Any:
    """The same of the four blocks at p, each 36 bytes from the last: one shuffle takes their words out of 128 bytes."""
    first, second = (b.load(pointer(b, offset(b, p, at)), align=1, typ=i32x16.llvm) for at in (0, 64))
    return _small_floats(b, b.bitcast(permute(b, first, [0, 9, 18, 27], second), i8x16.llvm))


_four_blocks = unary(types.intp, f32x16, _of_four_blocks)


@inline
def _nv_scales_of_step(p, n):  # type: ignore[no-untyped-def]
    if n >= 4:
        return _four_blocks(p)
    second, third = (36 if n > 1 else 0), (72 if n > 2 else 0)
    return _sixteen_floats((load_u32(p), load_u32(p + second), load_u32(p + third), load_u32(p)))


eights = shuffle(i8x32, [8 * k + i for k in (0, 2, 1, 3) for i in range(8)])


@inline
def _nv_weights(p, j):  # type: ignore[no-untyped-def]
    return values(eights(nibbles32(p + 4 + 16 * j)))


two_values = nibble_values64(8, VALUES)


@inline
def _nv_pairs(p, i):  # type: ignore[no-untyped-def]
    return two_values(p + 4)


NVFP4 = scaled(
    "nvfp4", _nv_weights, small_floats, zero=ZERO, pairs=_nv_pairs, scales_of_step=_nv_scales_of_step
)
