"""Queries as they meet the keys of a block: as float32, or for scaled kinds as integers of 16 bits.

The codes of a key are small integers.  With a query of integers a score is a sum of whole numbers, exact and
the same on every processor, times the scales of both:

    q . k = d_q d_k (sum of q_i (code_i - zero)) = d_q d_k (sum of q_i code_i - zero * sum of q_i)

d_q belongs to the same values of a head as the key's scale; 16 bits leave the score an error of about 1e-5, far
below that of the codes.  A query for a scaled kind, block by block:

    16 bits [values of the block, padded with zeros to 16], f32 d_q, int32 -zero * sum

Where an instruction multiplies bytes, four values are four high bytes and four low ones (q = 256 high + low, both
signed).  Elsewhere they are int16, the first and the third before the second and the fourth.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from llmgen.backends.cpu.kernels.abi import inline
from llmgen.backends.cpu.kernels.dot import FUSED, NATIVE
from llmgen.backends.cpu.kernels.kv import VECTOR, KVKind, query_bytes
from llmgen.backends.cpu.kernels.kv.rows import extent, larger, load_first
from llmgen.backends.cpu.kernels.pointwise import copy_floats
from llmgen.backends.cpu.kernels.simd import (
    f32x16,
    i8x16,
    i16x16,
    i32x16,
    permute,
    pointer,
    splat,
    store_f32,
    store_i32,
    sum_i32x16,
    zero_i32x16,
)

LIMIT = np.float32(127 * 256)
"""The largest integer of a query: its high byte is at most 127 also when the low one is negative."""
SMALLEST = np.float32(1e-30)
"""Queries below this count as zeros: the inverse of their scale might be infinite."""
_SHIFT = 12582912.0  # 1.5 * 2^23: added to a small number, it leaves the nearest integer in the lowest bits
_MIXED = [4 * (i // 8) + i % 4 + (16 if i % 8 >= 4 else 0) for i in range(32)]
_PAIRED = [4 * (i // 4) + (0, 2, 1, 3)[i % 4] for i in range(16)]


def zero_of(kind: KVKind) -> int:
    """What the products take a key's numbers to be too large by; signed bytes gain 128 where they must not be."""
    if kind.key == "q4_0":
        return 8
    return 128 if NATIVE else 0


def unit_of(kind: KVKind) -> int:
    """How many of a key's integers make its scale."""
    return 127 if kind.key == "nf4" else 1


@intrinsic
def put_integers(typing_context: Any, address: Any, v: Any) -> Any:
    """i32x16: the integers nearest to v, which are stored as 16 bits each in the order of a query."""

    def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
        bits = b.bitcast(b.fadd(args[1], ir.Constant(f32x16.llvm, [_SHIFT] * 16)), i32x16.llvm)
        short = b.trunc(bits, i16x16.llvm)
        if FUSED:
            rounded = b.add(short, ir.Constant(i16x16.llvm, [128] * 16))
            high = b.trunc(b.lshr(rounded, ir.Constant(i16x16.llvm, [8] * 16)), i8x16.llvm)
            stored = permute(b, high, _MIXED, b.trunc(short, i8x16.llvm))
        else:
            stored = permute(b, short, _PAIRED)
        b.store(stored, pointer(b, args[0]), align=1)
        return b.sext(short, i32x16.llvm)

    return i32x16(types.intp, f32x16), generate


def put_queries_of(kind: KVKind) -> Any:
    """``put(q, out, n, dim)``: n queries f32 [dim], one behind the other -> as keys of this kind meet them."""
    block, unit, zero = kind.block, np.float32(unit_of(kind)), zero_of(kind)
    bytes_of = inline(query_bytes)

    @inline
    def copy(q, out, n, dim):  # type: ignore[no-untyped-def]
        copy_floats(q, out, n * dim)

    @inline
    def put_block(x, p, n):  # type: ignore[no-untyped-def]
        high, low = extent(x, n)
        top = larger(high, low)
        inverse = LIMIT / top if top >= SMALLEST else np.float32(0.0)
        total = zero_i32x16()
        for i in range(0, n, VECTOR):
            total = total + put_integers(p, load_first(x + 4 * i, n - i) * splat(inverse))
            p += 2 * VECTOR
        d = top / (LIMIT * unit)
        store_f32(p, d + (d - d))  # an infinity becomes a NaN, as for keys
        store_i32(p + 4, -zero * sum_i32x16(total))
        return p + 8

    @inline
    def put(q, out, n, dim):  # type: ignore[no-untyped-def]
        for r in range(n):
            p = out + r * bytes_of(dim, block)
            for first in range(0, dim, block):
                p = put_block(q + 4 * (r * dim + first), p, min(block, dim - first))

    return put if block else copy
