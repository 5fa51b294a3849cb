"""Products of queries and the keys of a scaled kind: integers, as kv/queries.py says.

A load takes 64 bytes of a group of keys: four values of its 16 positions, or eight in codes of 4 bits, the first
four in the low halves of the bytes.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from llmgen.backends.cpu.kernels.dot import FUSED, NATIVE, WIDTH, emit_short_sum, emit_sum, unsigned
from llmgen.backends.cpu.kernels.kv import KVKind
from llmgen.backends.cpu.kernels.kv.loads import NF4, NF4_UNIT, looked_up
from llmgen.backends.cpu.kernels.layout import KEY_BLOCK, KEY_GROUP
from llmgen.backends.cpu.kernels.quants.vectors import emit_lookup
from llmgen.backends.cpu.kernels.simd import (
    I32,
    call_intrinsic,
    f32x16,
    i8x64,
    i32x16,
    offset,
    permute,
    pointer,
    splat_value,
)

LOAD = 64
"""Bytes of a load."""


def load_values(kind: KVKind) -> int:
    """Values of a key in a load."""
    return 32 // kind.bits


def _halves_of_bytes(b: Any, v: Any) -> list[Any]:
    low = b.and_(v, ir.Constant(v.type, [15] * v.type.count))
    return [low, b.lshr(v, ir.Constant(v.type, [4] * v.type.count))]


def _codes(kind: KVKind, b: Any, address: Any) -> list[Any]:
    """i8x64, or two for codes of 4 bits: [16 positions][4 values]."""
    v = b.load(pointer(b, address), align=1, typ=i8x64.llvm)
    return [v] if kind.bits == 8 else _halves_of_bytes(b, v)


def _in_registers(b: Any, v: Any) -> list[Any]:
    return [permute(b, v, range(at, at + WIDTH)) for at in range(0, 64, WIDTH)] if WIDTH < 64 else [v]


def _numbers(kind: KVKind, b: Any, address: Any) -> list[list[Any]]:
    """What is multiplied, larger by ``zero_of(kind)`` than it stands for: the registers of each four values."""
    out = [_in_registers(b, v) for v in _codes(kind, b, address)]
    if kind.key == "q8_0":
        return [[unsigned(b, v) for v in registers] for registers in out]
    if kind.key == "nf4":
        table = [(round(NF4_UNIT * number) + (128 if NATIVE else 0) + 128) % 256 - 128 for number in NF4]
        return [[emit_lookup(b, v, table) for v in registers] for registers in out]
    return out


def _four(b: Any, address: Any, like: Any) -> Any:
    """Four bytes of a query in each group of four lanes of a register of bytes."""
    lanes = ir.VectorType(I32, like.count // 4)
    return b.bitcast(splat_value(b, b.load(pointer(b, address), align=4, typ=I32), lanes), like)


def _shorts(b: Any, v: Any) -> tuple[Any, Any]:
    """Signed bytes -> int16: the even ones, and the odd ones."""
    wide = b.bitcast(v, ir.VectorType(ir.IntType(16), v.type.count // 2))
    eight = ir.Constant(wide.type, [8] * wide.type.count)
    return b.ashr(b.shl(wide, eight), eight), b.ashr(wide, eight)


SUMS = 2 if FUSED else 1
"""Sums of a score: of the high and of the low bytes, or of both."""


def _add(b: Any, sums: list[Any], keys: list[list[Any]], x: Any) -> list[Any]:
    """The sums of 16 keys with the products of one load added; x: address of the query's values."""
    registers = [[_register(b, total, i) for i in range(64 // WIDTH)] for total in sums]
    for quad, parts in enumerate(keys):
        low = offset(b, x, 8 * quad)
        high = offset(b, low, 4)
        for i, w in enumerate(parts):
            first, second = _four(b, low, w.type), _four(b, high, w.type)
            if FUSED:
                registers[0][i] = emit_sum(b, [(w, first)], 8, registers[0][i])
                registers[1][i] = emit_sum(b, [(w, second)], 8, registers[1][i])
                continue
            even, odd = _shorts(b, w)
            pairs = [(even, b.bitcast(first, even.type)), (odd, b.bitcast(second, odd.type))]
            registers[0][i] = b.add(registers[0][i], emit_short_sum(b, pairs))
    return [_joined(b, parts) for parts in registers]


def _register(b: Any, total: Any, i: int) -> Any:
    n = WIDTH // 4
    return total if n == 16 else permute(b, total, range(i * n, (i + 1) * n))


def _joined(b: Any, parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else permute(b, parts[0], range(16), parts[1])


def zero_sums(rows: int, groups: int) -> Any:
    """``zeros()``: the sums of rows * groups * 16 scores."""
    tile = types.UniTuple(i32x16, rows * groups * SUMS)

    @intrinsic
    def function(typing_context: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            return context.make_tuple(b, tile, [ir.Constant(i32x16.llvm, [0] * 16)] * tile.count)

        return tile(), generate

    return function


def product_step(kind: KVKind, rows: int, groups: int) -> Any:
    """``step(sums, q, q_stride, k, group_bytes)``: sums[r][g] += q[r] . k[g] over the values of one load.

    q: address of the rows' values, q_stride bytes apart; k: of the load of the first group, group_bytes apart.
    """
    tile = types.UniTuple(i32x16, rows * groups * SUMS)

    @intrinsic
    def function(typing_context: Any, sums: Any, q: Any, q_stride: Any, k: Any, group_bytes: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            packed, x, stride, address, group_stride = args
            keys = []
            for _ in range(groups):
                keys.append(_numbers(kind, b, address))
                address = b.add(address, group_stride)
            out: list[Any] = []
            for _ in range(rows):
                for g in range(groups):
                    before = [b.extract_value(packed, len(out) + i) for i in range(SUMS)]
                    out += _add(b, before, keys[g], x)
                x = b.add(x, stride)
            return context.make_tuple(b, tile, out)

        return tile(tile, types.intp, types.intp, types.intp, types.intp), generate

    return function


def _scaled(b: Any, sums: list[Any], d: Any) -> Any:
    """The sums of a row -> f32x16, with the scale and the rest at d."""
    total = sums[0]
    if FUSED:
        total = b.add(b.shl(total, ir.Constant(i32x16.llvm, [8] * 16)), sums[1])
    rest = b.load(pointer(b, offset(b, d, 4)), align=4, typ=I32)
    total = b.add(total, splat_value(b, rest, i32x16.llvm))
    factor = splat_value(b, b.load(pointer(b, d), align=4, typ=ir.FloatType()), f32x16.llvm)
    return b.fmul(b.sitofp(total, f32x16.llvm), factor)


def put_products(rows: int, groups: int, halves: Any) -> Any:
    """``put(sums, d, q_stride, s, scales, group_bytes, add)``: s[r][g] = sums[r][g] times the scales of row and keys.

    d: address of a row's scale and what is added to its sums; s: of the scores, KEY_BLOCK floats a row; halves: reads
    the scales, f16 [KEY_GROUP], group_bytes apart; add: whether scores of earlier blocks of the head are there.
    """
    tile = types.UniTuple(i32x16, rows * groups * SUMS)

    @intrinsic
    def function(
        typing_context: Any, sums: Any, d: Any, q_stride: Any, s: Any, scales: Any, group_bytes: Any, add: Any
    ) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            packed, d, stride, scores, address, group_stride, more = args
            more = b.icmp_signed("!=", more, ir.Constant(more.type, 0))
            factors = []
            for _ in range(groups):
                factors.append(halves(b, address))
                address = b.add(address, group_stride)
            at = 0
            for r in range(rows):
                for g in range(groups):
                    sums = [b.extract_value(packed, at + i) for i in range(SUMS)]
                    at += SUMS
                    here = pointer(b, offset(b, scores, 4 * (r * KEY_BLOCK + g * KEY_GROUP)))
                    before = b.load(here, align=4, typ=f32x16.llvm)
                    before = b.select(more, before, ir.Constant(f32x16.llvm, [0.0] * 16))
                    part = [_scaled(b, sums, d), factors[g], before]
                    b.store(call_intrinsic(b, "llvm.fma.v16f32", f32x16.llvm, part), here, align=4)
                d = b.add(d, stride)
            return context.get_dummy_value()

        return types.void(tile, *[types.intp] * 5, types.int64), generate

    return function


def numbers_of(kind: KVKind) -> Any:
    """``load(address)``: the values of a load as floats before their scale, f32x16 of the 16 positions for each."""
    tile = types.UniTuple(f32x16, load_values(kind))

    @intrinsic
    def function(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            out = []
            for codes in _codes(kind, b, args[0]):
                for value in range(4):
                    here = permute(b, codes, range(value, 64, 4))
                    if kind.bits == 8:
                        out.append(b.sitofp(here, f32x16.llvm))
                    else:
                        out.append(looked_up(b, b.zext(here, i32x16.llvm), kind))
            return context.make_tuple(b, tile, out)

        return tile(types.intp), generate

    return function
