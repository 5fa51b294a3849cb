"""Sixteen values of a KV cache as floats, kind by kind.

A load takes 16 neighbouring lanes of memory: 16 values, or for codes of 4 bits 2 x 16, the low
and the high halves of the bytes.  Codes become the numbers that their block's scale multiplies.  Keys of the
scaled kinds are not loaded as floats but multiplied as integers (kv/products.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from llmgen.backends.cpu.kernels import half
from llmgen.backends.cpu.kernels.dot import AVX512, LEVEL
from llmgen.backends.cpu.kernels.kv import KVKind
from llmgen.backends.cpu.kernels.layout import KEY_BLOCK, KEY_GROUP
from llmgen.backends.cpu.kernels.simd import (
    call_intrinsic,
    f32x16,
    i8x16,
    i16x16,
    i32x16,
    offset,
    permute,
    pointer,
    splat_value,
)
from llmgen.backends.cpu.runtime.cpu import target

NF4_UNIT = 127
_QUANTILES = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""Quantiles of the normal distribution, scaled to [-1, 1] (arXiv:2305.14314, appendix E)."""
NF4 = tuple(round(NF4_UNIT * quantile) / NF4_UNIT for quantile in _QUANTILES)
"""The nearest multiples of 1 / 127, so that keys can be multiplied as integers."""
Q4_0 = tuple(float(code - 8) for code in range(16))


def _looked_up(b: Any, codes: Any, table: Sequence[float]) -> Any:
    """i32x16 -> f32x16: the numbers of a table of 16 whose places are the lowest 4 bits of each lane."""
    if AVX512:
        numbers = ir.Constant(f32x16.llvm, list(table))
        return call_intrinsic(b, "llvm.x86.avx512.permvar.sf.512", f32x16.llvm, [numbers, codes])
    if LEVEL in ("avx2", "avxvnni"):
        return _from_halves(b, codes, table)
    if target().is_arm:
        return _by_bytes(b, codes, table)
    chosen: list[Any] = [ir.Constant(f32x16.llvm, [number] * 16) for number in table]
    for bit in range(4):  # of each pair of candidates the one that the bit says
        odd = _bit(b, codes, bit)
        chosen = [b.select(odd, chosen[i + 1], chosen[i]) for i in range(0, len(chosen), 2)]
    return chosen[0]


def _from_halves(b: Any, codes: Any, table: Sequence[float]) -> Any:
    """The same with look-ups in tables of 8, two for each half of the lanes."""
    eight = ir.VectorType(ir.FloatType(), 8)
    parts = []
    for lanes in (range(8), range(8, 16)):
        here = permute(b, codes, lanes)
        low, high = (
            call_intrinsic(b, "llvm.x86.avx2.permps", eight, [ir.Constant(eight, list(t)), here])
            for t in (table[:8], table[8:])
        )
        parts.append(b.select(_bit(b, here, 3), high, low))
    return permute(b, parts[0], range(16), parts[1])


def _by_bytes(b: Any, codes: Any, table: Sequence[float]) -> Any:
    """The same with Arm's look-up of bytes in a table of 64, four for each number."""
    register, data = ir.VectorType(ir.IntType(8), 16), np.array(table, "<f4").view(np.int8)
    numbers = [ir.Constant(register, data[at : at + 16].tolist()) for at in range(0, 64, 16)]
    code, spread, order = (ir.Constant(codes.type, [v] * 16) for v in (15, 0x04040404, 0x03020100))
    places = b.bitcast(b.add(b.mul(b.and_(codes, code), spread), order), ir.VectorType(ir.IntType(8), 64))
    parts = []
    for at in range(0, 64, 16):
        here = permute(b, places, range(at, at + 16))
        parts.append(call_intrinsic(b, "llvm.aarch64.neon.tbl4.v16i8", register, [*numbers, here]))
    pairs = [permute(b, v, range(32), u) for v, u in zip(parts[::2], parts[1::2], strict=True)]
    return b.bitcast(permute(b, pairs[0], range(64), pairs[1]), f32x16.llvm)


def _bit(b: Any, codes: Any, bit: int) -> Any:
    """Whether a bit is set, lane by lane."""
    mask, zero = (ir.Constant(codes.type, [value] * codes.type.count) for value in (1 << bit, 0))
    return b.icmp_signed("!=", b.and_(codes, mask), zero)


def looked_up(b: Any, codes: Any, kind: KVKind) -> Any:
    """i32x16 -> f32x16: what codes of 4 bits stand for."""
    return _looked_up(b, codes, NF4 if kind.key == "nf4" else Q4_0)


def _nibbles(b: Any, address: Any, table: Sequence[float]) -> list[Any]:
    codes = b.zext(b.load(pointer(b, address), align=1, typ=i8x16.llvm), i32x16.llvm)
    high = b.lshr(codes, ir.Constant(i32x16.llvm, [4] * 16))
    return [_looked_up(b, codes, table), _looked_up(b, high, table)]


def _bfloats(b: Any, address: Any) -> Any:
    """A bfloat16 is the upper half of a float32."""
    wide = b.zext(b.load(pointer(b, address), align=1, typ=i16x16.llvm), i32x16.llvm)
    return b.bitcast(b.shl(wide, ir.Constant(i32x16.llvm, [16] * 16)), f32x16.llvm)


def halves(b: Any, address: Any) -> Any:
    return half.extend(b, b.load(pointer(b, address), align=1, typ=i16x16.llvm))


_LOADS: dict[str, Callable[[Any, Any], list[Any]]] = {
    "f32": lambda b, p: [b.load(pointer(b, p), align=1, typ=f32x16.llvm)],
    "f16": lambda b, p: [halves(b, p)],
    "bf16": lambda b, p: [_bfloats(b, p)],
    "q8_0": lambda b, p: [b.sitofp(b.load(pointer(b, p), align=1, typ=i8x16.llvm), f32x16.llvm)],
    "q4_0": lambda b, p: _nibbles(b, p, Q4_0),
    "nf4": lambda b, p: _nibbles(b, p, NF4),
}


def load_bytes(kind: KVKind) -> int:
    """Bytes of one load."""
    return 2 * kind.bits * parts_of(kind)


def parts_of(kind: KVKind) -> int:
    """Vectors of 16 numbers that a load gives."""
    return 2 if kind.bits == 4 else 1


def load_of(kind: KVKind) -> Any:
    """``load(address)``: what one load gives, a tuple of f32x16."""
    tile = types.UniTuple(f32x16, parts_of(kind))

    @intrinsic
    def function(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            return context.make_tuple(b, tile, _LOADS[kind.key](b, args[0]))

        return tile(types.intp), generate

    return function


def zeros(n: int) -> Any:
    """``zeros()``: n times f32x16."""
    tile = types.UniTuple(f32x16, n)

    @intrinsic
    def function(typing_context: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            return context.make_tuple(b, tile, [ir.Constant(f32x16.llvm, [0.0] * 16)] * n)

        return tile(), generate

    return function


def _fma(b: Any, scalar: Any, vector: Any, total: Any) -> Any:
    s = splat_value(b, b.load(pointer(b, scalar), align=4, typ=ir.FloatType()), f32x16.llvm)
    return call_intrinsic(b, "llvm.fma.v16f32", f32x16.llvm, [s, vector, total])


def key_step(kind: KVKind, rows: int, groups: int) -> Any:
    """``step(acc, q, q_stride, k, group_bytes)``: acc[r][g] += q[r] * k[g] for one value of a float kind's keys.

    q: address of the rows' numbers, q_stride bytes apart; k: of the load of the first group, group_bytes
    apart; acc: rows * groups f32x16, a lane for each key.
    """
    tile = types.UniTuple(f32x16, rows * groups)

    @intrinsic
    def function(typing_context: Any, acc: Any, q: Any, q_stride: Any, k: Any, group_bytes: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            packed, scalar, stride, address, group_stride = args
            loaded = []
            for _ in range(groups):
                loaded += _LOADS[kind.key](b, address)
                address = b.add(address, group_stride)
            out = []
            for r in range(rows):
                for g in range(groups):
                    out.append(_fma(b, scalar, loaded[g], b.extract_value(packed, r * groups + g)))
                scalar = b.add(scalar, stride)
            return context.make_tuple(b, tile, out)

        return tile(tile, types.intp, types.intp, types.intp, types.intp), generate

    return function


def value_step(kind: KVKind, rows: int, blocks: int, vectors: int) -> Any:
    """``step(acc, w, v, block_bytes)``: acc[r][b][i] += w[b][r] * v[b][i], for one position.

    w: address of one weight; those of the next row are KEY_BLOCK floats behind, those of the next block
    behind the last row.  v: address of a row's values; those of the next block, block_bytes behind.
    acc: rows * blocks * vectors f32x16.
    """
    tile = types.UniTuple(f32x16, rows * blocks * vectors)
    loads = -(-vectors // parts_of(kind))

    @intrinsic
    def function(typing_context: Any, acc: Any, w: Any, v: Any, block_bytes: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            packed, weights, address, stride = args
            loaded: list[list[Any]] = []
            out: list[Any] = []
            for _ in range(blocks):
                here = [_LOADS[kind.key](b, offset(b, address, i * load_bytes(kind))) for i in range(loads)]
                loaded.append([vector for load in here for vector in load][:vectors])
                address = b.add(address, stride)
            for r in range(rows):
                for block in range(blocks):
                    scalar = offset(b, weights, 4 * KEY_BLOCK * (block * rows + r))
                    for i in range(vectors):
                        before = b.extract_value(packed, len(out))
                        out.append(_fma(b, scalar, loaded[block][i], before))
            return context.make_tuple(b, tile, out)

        return tile(tile, types.intp, types.intp, types.intp), generate

    return function


def put_scores(rows: int, groups: int) -> Any:
    """``put(acc, s)``: s[r][g] = acc[r][g]; s: address of the scores, KEY_BLOCK floats a row."""
    tile = types.UniTuple(f32x16, rows * groups)

    @intrinsic
    def function(typing_context: Any, acc: Any, s: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            packed, scores = args
            for r in range(rows):
                for g in range(groups):
                    here = pointer(b, offset(b, scores, 4 * (r * KEY_BLOCK + g * KEY_GROUP)))
                    b.store(b.extract_value(packed, r * groups + g), here, align=4)
            return context.get_dummy_value()

        return types.void(tile, types.intp), generate

    return function


def add_sums(rows: int, n: int) -> Any:
    """``add(acc, o, stride)``: the n vectors of each row are added to those at o, rows ``stride`` bytes apart."""
    tile = types.UniTuple(f32x16, rows * n)

    @intrinsic
    def function(typing_context: Any, acc: Any, o: Any, stride: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            packed, address, step = args
            for r in range(rows):
                for i in range(n):
                    here = pointer(b, offset(b, address, 64 * i))
                    before = b.load(here, align=4, typ=f32x16.llvm)
                    b.store(b.fadd(before, b.extract_value(packed, r * n + i)), here, align=4)
                address = b.add(address, step)
            return context.get_dummy_value()

        return types.void(tile, types.intp, types.intp), generate

    return function
