"""Sixteen values of a KV cache as floats, kind by kind.

A load takes 16 neighbouring lanes of memory: 16 values, or for codes of 4 bits 2 x 16, the low
and the high halves of the bytes.  Codes become the numbers that their block's scale multiplies.
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

NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""Quantiles of the normal distribution, scaled to [-1, 1] (arXiv:2305.14314, appendix E)."""
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


def _nibbles(b: Any, address: Any, table: Sequence[float]) -> list[Any]:
    codes = b.zext(b.load(pointer(b, address), align=1, typ=i8x16.llvm), i32x16.llvm)
    high = b.lshr(codes, ir.Constant(i32x16.llvm, [4] * 16))
    return [_looked_up(b, codes, table), _looked_up(b, high, table)]


def _bfloats(b: Any, address: Any) -> Any:
    """A bfloat16 is the upper half of a float32."""
    wide = b.zext(b.load(pointer(b, address), align=1, typ=i16x16.llvm), i32x16.llvm)
    return b.bitcast(b.shl(wide, ir.Constant(i32x16.llvm, [16] * 16)), f32x16.llvm)


def _halves(b: Any, address: Any) -> Any:
    return half.extend(b, b.load(pointer(b, address), align=1, typ=i16x16.llvm))


_LOADS: dict[str, Callable[[Any, Any], list[Any]]] = {
    "f32": lambda b, p: [b.load(pointer(b, p), align=1, typ=f32x16.llvm)],
    "f16": lambda b, p: [_halves(b, p)],
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


def key_step(kind: KVKind, rows: int, groups: int, parts: int) -> Any:
    """``step(acc, q, q_stride, k, group_bytes)``: acc[r][g] += q[r][i] * k[g][i] for the i < parts of one load.

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
                loaded.append(_LOADS[kind.key](b, address))
                address = b.add(address, group_stride)
            out = []
            for r in range(rows):
                for g in range(groups):
                    total = b.extract_value(packed, r * groups + g)
                    for i in range(parts):
                        total = _fma(b, offset(b, scalar, 4 * i), loaded[g][i], total)
                    out.append(total)
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


def put_scores(rows: int, groups: int, scaled: bool) -> Any:
    """``put(acc, s, scales, group_bytes, add)``: s[r][g] = acc[r][g], for a scaled kind times the keys' scales.

    s: address of the scores, KEY_BLOCK floats a row; scales: f16 [KEY_GROUP], group_bytes apart;
    add: whether scores of earlier blocks of the head are there already.
    """
    tile = types.UniTuple(f32x16, rows * groups)

    @intrinsic
    def function(typing_context: Any, acc: Any, s: Any, scales: Any, group_bytes: Any, add: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            packed, scores, address, stride, more = args
            more = b.icmp_signed("!=", more, ir.Constant(more.type, 0))
            for g in range(groups):
                factor = _halves(b, address) if scaled else None
                for r in range(rows):
                    here = pointer(b, offset(b, scores, 4 * (r * KEY_BLOCK + g * KEY_GROUP)))
                    score = b.extract_value(packed, r * groups + g)
                    if factor is not None:
                        before = b.load(here, align=4, typ=f32x16.llvm)
                        before = b.select(more, before, ir.Constant(f32x16.llvm, [0.0] * 16))
                        score = call_intrinsic(b, "llvm.fma.v16f32", f32x16.llvm, [score, factor, before])
                    b.store(score, here, align=4)
                address = b.add(address, stride)
            return context.get_dummy_value()

        return types.void(tile, types.intp, types.intp, types.intp, types.int64), generate

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
