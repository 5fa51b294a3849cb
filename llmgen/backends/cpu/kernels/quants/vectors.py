"""Pieces that several types unpack their blocks with: bits of bytes, table look-ups, packed scales."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from llmgen.backends.cpu.kernels.dot import AVX512, LEVEL, NATIVE
from llmgen.backends.cpu.kernels.simd import (
    I32,
    I64,
    Vec,
    binary,
    call_intrinsic,
    f32x16,
    i8x16,
    i8x32,
    i8x64,
    i32x16,
    i64x4,
    permute,
    pointer,
    scalar_loader,
    splat_value,
    unary,
    undefined,
)
from llmgen.backends.cpu.runtime.cpu import target

load_u16 = scalar_loader(ir.IntType(16), types.int64, "zext")


# ---- bytes -----------------------------------------------------------------------------


def _shift_right(b: Any, v: Any, n: Any) -> Any:
    """Bytes shifted right; the bits that come in from the neighbour must be masked away."""
    wide = b.bitcast(v, i64x4.llvm)
    return b.bitcast(b.lshr(wide, splat_value(b, n, i64x4.llvm)), i8x32.llvm)


shift_right = binary(i8x32, types.int64, i8x32, _shift_right)


def masked(mask: int, left: int = 0) -> Any:
    """``f(v)``: (v & mask) << left for 32 bytes."""

    def emit(b: Any, v: Any) -> Any:
        kept = b.and_(v, ir.Constant(i8x32.llvm, [mask] * 32))
        return b.shl(kept, ir.Constant(i8x32.llvm, [left] * 32)) if left else kept

    return unary(i8x32, i8x32, emit)


def emit_nibbles32(b: Any, p: Any) -> Any:
    """16 bytes at p -> 32 nibbles: the low ones of all bytes, then the high ones."""
    v = b.load(pointer(b, p), align=1, typ=i8x16.llvm)
    low = b.and_(v, ir.Constant(i8x16.llvm, [15] * 16))
    high = b.lshr(v, ir.Constant(i8x16.llvm, [4] * 16))
    return permute(b, low, range(32), high)


nibbles32 = unary(types.intp, i8x32, emit_nibbles32)

join_i8x32 = binary(i8x32, i8x32, i8x64, lambda b, v, w: permute(b, v, range(64), w))


def _set_bits(b: Any, word: Any) -> Any:
    """i1 [32]: the bits of a word.  Without mask registers LLVM may take them apart one by one: compare bytes."""
    word = b.trunc(word, I32)
    if AVX512:
        return b.bitcast(word, ir.VectorType(ir.IntType(1), 32))
    spread = permute(b, b.bitcast(word, ir.VectorType(ir.IntType(8), 4)), [i // 8 for i in range(32)])
    bits = ir.Constant(i8x32.llvm, [1 << i if i < 7 else -128 for i in range(8)] * 4)
    return b.icmp_unsigned("==", b.and_(spread, bits), bits)


def by_bits(if_set: int, if_not: int) -> Any:
    """``f(word)``: 32 bytes, by the bits of a word from the lowest on."""

    def emit(b: Any, word: Any) -> Any:
        values = [ir.Constant(i8x32.llvm, [value] * 32) for value in (if_set, if_not)]
        return b.select(_set_bits(b, word), *values)

    return unary(types.int64, i8x32, emit)


def with_signs(zero: int) -> Any:
    """``f(v, word)``: bytes are numbers plus ``zero``; those whose bit is set in the word get the other sign."""

    def emit(b: Any, v: Any, word: Any) -> Any:
        negative = b.sub(ir.Constant(i8x32.llvm, [2 * zero] * 32), v)
        return b.select(_set_bits(b, word), negative, v)

    return binary(i8x32, types.int64, i8x32, emit)


# ---- floats ----------------------------------------------------------------------------


def _keep(b: Any, v: Any, n: Any) -> Any:
    lanes = ir.Constant(ir.VectorType(I64, 16), list(range(16)))
    mask = b.icmp_signed("<", lanes, splat_value(b, n, lanes.type))
    return b.select(mask, v, ir.Constant(f32x16.llvm, [0.0] * 16))


keep_lanes = binary(f32x16, types.int64, f32x16, _keep)
"""``f(v, n)``: the first n lanes, and zeros."""


def splat_to(vec: Vec) -> Any:
    """``f(x)``: a float32 in all lanes of ``vec``."""
    return unary(types.float32, vec, lambda b, x: splat_value(b, x, vec.llvm))


def fields(words: Sequence[int], shifts: Sequence[int], bits: int, to: int = 0) -> Any:
    """``f(p)``, i32x16: of the 32-bit words at p, for each lane a field of so many bits of one word, at bit ``to``."""

    def emit(b: Any, p: Any) -> Any:
        memory = ir.VectorType(I32, max(words) + 1)
        loaded = permute(b, b.load(pointer(b, p), align=1, typ=memory), words)
        shifted = b.lshr(loaded, ir.Constant(i32x16.llvm, [shift - to for shift in shifts]))
        return b.and_(shifted, ir.Constant(i32x16.llvm, [((1 << bits) - 1) << to] * 16))

    return unary(types.intp, i32x16, emit)


def _odd_numbers(b: Any, v: Any) -> Any:
    one = ir.Constant(i32x16.llvm, [1] * 16)
    return b.sitofp(b.add(b.shl(v, one), one), f32x16.llvm)


odd_numbers = unary(i32x16, f32x16, _odd_numbers)
"""n -> 2 n + 1, as float32."""


# ---- tables ----------------------------------------------------------------------------


def emit_lookup(b: Any, codes: Any, table: Sequence[int]) -> Any:
    """Bytes 0..15 -> the signed bytes of a table."""
    n = codes.type.count
    if target().is_arm:
        return _in_parts(b, codes, 16, "llvm.aarch64.neon.tbl1.v16i8", table)
    if LEVEL == "generic":
        return _selected(b, codes, table)
    name = {32: "llvm.x86.avx2.pshuf.b", 64: "llvm.x86.avx512.pshuf.b.512"}[n]
    return _in_parts(b, codes, n, name, table)


def _in_parts(b: Any, codes: Any, n: int, name: str, table: Sequence[int]) -> Any:
    """The look-up by an instruction that takes n bytes."""
    kind = ir.VectorType(ir.IntType(8), n)
    values = ir.Constant(kind, list(table) * (n // 16))
    starts = range(0, codes.type.count, n)
    parts = [call_intrinsic(b, name, kind, [values, permute(b, codes, range(at, at + n))]) for at in starts]
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [permute(b, x, range(2 * x.type.count), y) for x, y in pairs]
    return parts[0]


PERMUTES_BYTES = AVX512 and "+avx512vbmi" in target().features.split(",")
"""``vpermb`` is there, which looks up among 64 bytes."""


def emit_nibble_lookup(b: Any, v: Any, table: Sequence[int]) -> Any:
    """The lower four bits of each byte -> the signed bytes of a table of 16."""
    n = v.type.count
    if not (PERMUTES_BYTES and n == 64):
        return emit_lookup(b, b.and_(v, ir.Constant(v.type, [15] * n)), table)
    # the table stands there four times, so the two bits above do not matter
    flip = ir.Constant(v.type, [-128 if min(table) < 0 and NATIVE else 0] * n)
    values = b.xor(ir.Constant(v.type, list(table) * 4), flip)
    found = call_intrinsic(b, "llvm.x86.avx512.permvar.qi.512", v.type, [values, v])
    # signed values leave as ``dot.unsigned`` makes them, which then is no operation any more
    return b.xor(found, flip)


def _selected(b: Any, codes: Any, table: Sequence[int]) -> Any:
    """The look-up without such an instruction: half of the values are dropped for each bit of a code."""
    values = [ir.Constant(codes.type, [value] * codes.type.count) for value in table]
    for bit in range(4):
        mask = ir.Constant(codes.type, [1 << bit] * codes.type.count)
        is_set = b.icmp_unsigned("==", b.and_(codes, mask), mask)
        values = [b.select(is_set, odd, even) for even, odd in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def lookup(table: Sequence[int]) -> Any:
    """``f(codes)``: 32 bytes 0..15 -> the signed bytes of a table."""
    return unary(i8x32, i8x32, lambda b, v: emit_lookup(b, v, table))


def numbers(bits: int, values: Sequence[int]) -> Any:
    """``f(i)``, int64: the i-th of constant numbers, which become part of the kernel's object code."""
    kind = ir.IntType(bits)
    array = ir.Constant(ir.ArrayType(kind, len(values)), [v - (v >> (bits - 1) << bits) for v in values])

    def emit(b: Any, i: Any) -> Any:
        data = cgutils.global_constant(b, "numbers", array)
        data.unnamed_addr = True  # so that LLVM keeps one of several
        value = b.load(b.gep(data, [ir.Constant(I64, 0), i], source_etype=array.type), typ=kind)
        return b.zext(value, I64) if bits < 64 else value

    return unary(types.int64, types.int64, emit)


def together(bits: int) -> Any:
    """``f(numbers)``: a tuple of int64, of which the lower ``bits`` count -> i8x32."""
    n = 256 // bits
    vec = ir.VectorType(ir.IntType(bits), n)

    @intrinsic
    def function(typing_context: Any, values: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            v = undefined(vec)
            for i in range(n):
                value = b.extract_value(args[0], i)
                value = b.trunc(value, vec.element) if bits < 64 else value
                v = b.insert_element(v, value, ir.Constant(I32, i))
            return b.bitcast(v, i8x32.llvm)

        return i8x32(types.UniTuple(types.int64, n)), generate

    return function


four_eights, eight_fours = together(64), together(32)
"""Four times eight bytes, eight times four."""
