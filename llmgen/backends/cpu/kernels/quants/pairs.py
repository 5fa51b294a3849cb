"""64 weights at a time, as rows of superblocks meet a generated token: nibbles, and vectors out of codebooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from llmgen.backends.cpu.kernels.abi import inline
from llmgen.backends.cpu.kernels.dot import ARM, AVX512, LEVEL, WIDTH
from llmgen.backends.cpu.kernels.quants.vectors import emit_nibble_lookup
from llmgen.backends.cpu.kernels.simd import (
    I32,
    I64,
    Vec,
    binary,
    call_intrinsic,
    i8x64,
    i32x16,
    i64x8,
    permute,
    pointer,
    unary,
    undefined,
)

GATHERS = LEVEL == "amx"
"""Whether look-ups by one instruction are worth it: Intel's CPUs before those with AMX, where they are slowed
down against attacks, and AMD's take longer for them than for one load after the other."""
LOOKS_UP_64 = not ARM and LEVEL != "generic"
"""Whether codebooks are looked up for 64 weights at a time, with indices and signs computed side by side."""

# ---- nibbles -----------------------------------------------------------------------------


def nibble_values64(run: int, table: Sequence[int]) -> Any:
    """``f(p)``: what a table has for the nibbles of 32 bytes: of each ``run`` (8 or 16) the low, then the high ones."""
    n = run // 8
    lanes = [n * (lane // (2 * n)) + lane % n for lane in range(8)]
    shifts = [4 * (lane // n % 2) for lane in range(8)]

    def emit(b: Any, p: Any) -> Any:
        words = permute(b, b.load(pointer(b, p), align=1, typ=ir.VectorType(ir.IntType(64), 4)), lanes)
        shifted = b.bitcast(b.lshr(words, ir.Constant(i64x8.llvm, shifts)), i8x64.llvm)
        parts = [permute(b, shifted, range(at, at + WIDTH)) for at in range(0, 64, WIDTH)]
        found = [emit_nibble_lookup(b, part, table) for part in parts]
        return found[0] if len(found) == 1 else permute(b, found[0], range(64), found[1])

    return unary(types.intp, i8x64, emit)


# ---- codebooks ---------------------------------------------------------------------------

i32x8 = Vec("i32", 8)


def looked_up(bits: int, values: Sequence[int]) -> Any:
    """``f(indices)``: 8 or 16 numbers of 64 or 32 bits, constants of the kernel, as 64 bytes."""
    n, number = 512 // bits, ir.IntType(bits)
    array = ir.Constant(ir.ArrayType(number, len(values)), [v - (v >> (bits - 1) << bits) for v in values])
    vec = ir.VectorType(number, n)

    def emit(b: Any, indices: Any) -> Any:
        data = cgutils.global_constant(b, "numbers", array)
        data.unnamed_addr = True  # so that LLVM keeps one of several
        found = _gathered(b, data, indices, vec) if GATHERS else _one_by_one(b, data, indices, vec)
        return b.bitcast(found, i8x64.llvm)

    return unary(i32x8 if n == 8 else i32x16, i8x64, emit)


def _gathered(b: Any, data: Any, indices: Any, vec: ir.VectorType) -> Any:
    """The numbers, by one instruction."""
    n, bits = vec.count, vec.element.width
    at = b.gep(data, [indices], source_etype=vec.element)
    at.type = ir.VectorType(ir.PointerType(), n)
    everywhere = ir.Constant(ir.VectorType(ir.IntType(1), n), [1] * n)
    arguments = [at, ir.Constant(I32, bits // 8), everywhere, ir.Constant(vec, [0] * n)]
    return call_intrinsic(b, f"llvm.masked.gather.v{n}i{bits}.v{n}p0", vec, arguments)


def _one_by_one(b: Any, data: Any, indices: Any, vec: ir.VectorType) -> Any:
    """The numbers, by a load each; the indices, of 16 bits at most, leave their register four at a time."""
    n = vec.count
    shorts = b.trunc(indices, ir.VectorType(ir.IntType(16), n))
    fours = b.bitcast(shorts, ir.VectorType(I64, n // 4))
    numbers = undefined(vec)
    for i in range(n):
        four = b.extract_element(fours, ir.Constant(I32, i // 4))
        index = b.and_(b.lshr(four, ir.Constant(I64, 16 * (i % 4))), ir.Constant(I64, 0xFFFF))
        at = b.gep(data, [index], source_etype=vec.element)
        numbers = b.insert_element(numbers, b.load(at, typ=vec.element), ir.Constant(I32, i))
    return numbers


def _bytes_at(vec: Vec) -> Any:
    def emit(b: Any, p: Any) -> Any:
        return b.zext(b.load(pointer(b, p), align=1, typ=ir.VectorType(ir.IntType(8), vec.n)), vec.llvm)

    return unary(types.intp, vec, emit)


eight_bytes, sixteen_bytes = _bytes_at(i32x8), _bytes_at(i32x16)
"""Bytes at an address as indices."""
bytes_of = unary(
    types.int64,
    i32x8,
    lambda b, v: b.zext(b.bitcast(v, ir.VectorType(ir.IntType(8), 8)), i32x8.llvm),
)
"""The bytes of a number as indices."""


def above(vec: Vec, bits: int, shifts: Sequence[int] | None = None) -> Any:
    """``f(indices, word)``: of the word a field of so many bits for each index, put above its eight bits.

    shifts: where the fields begin; if not given, they follow one another.
    """
    starts = shifts or [bits * i for i in range(vec.n)]

    def emit(b: Any, indices: Any, word: Any) -> Any:
        kind = vec.llvm
        spread = permute(b, b.bitcast(b.trunc(word, I32), ir.VectorType(I32, 1)), [0] * vec.n)
        fields = b.lshr(spread, ir.Constant(kind, list(starts)))
        fields = b.and_(fields, ir.Constant(kind, [(1 << bits) - 1] * vec.n))
        return b.or_(indices, b.shl(fields, ir.Constant(kind, [8] * vec.n)))

    return binary(vec, types.int64, vec, emit)


@intrinsic
def nine_and_seven(typing_context: Any, p: Any) -> Any:
    """Eight times 16 bits at p -> the lower nine of each, as indices, and the upper seven, a byte each of an int64."""
    kind = types.Tuple([i32x8, types.int64])

    def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
        shorts = b.load(pointer(b, args[0]), align=1, typ=ir.VectorType(ir.IntType(16), 8))
        indices = b.and_(b.zext(shorts, i32x8.llvm), ir.Constant(i32x8.llvm, [511] * 8))
        sevens = b.trunc(b.lshr(shorts, ir.Constant(shorts.type, [9] * 8)), ir.VectorType(ir.IntType(8), 8))
        return context.make_tuple(b, kind, [indices, b.bitcast(sevens, I64)])

    return kind(types.intp), generate


pairs_above, bits_above = above(i32x8, 2), above(i32x16, 1)


def _set_bits64(b: Any, word: Any) -> Any:
    """i1 [64]: the bits of a word; without mask registers, bytes are compared."""
    if AVX512:
        return b.bitcast(word, ir.VectorType(ir.IntType(1), 64))
    eight = b.bitcast(word, ir.VectorType(ir.IntType(8), 8))
    spread = permute(b, eight, [i // 8 for i in range(64)])
    bits = ir.Constant(i8x64.llvm, [1 << i if i < 7 else -128 for i in range(8)] * 8)
    return b.icmp_unsigned("==", b.and_(spread, bits), bits)


def with_signs64(zero: int) -> Any:
    """``f(v, signs)``: bytes are numbers plus ``zero``; those whose bit is set get the other sign."""

    def emit(b: Any, v: Any, signs: Any) -> Any:
        negative = b.sub(ir.Constant(i8x64.llvm, [2 * zero] * 64), v)
        return b.select(_set_bits64(b, signs), negative, v)

    return binary(i8x64, types.int64, i8x64, emit)


_EACH_BYTE, _BOTH = 0x0101010101010101, 0x0000000100000001


@inline
def even_signs64(sevens):  # type: ignore[no-untyped-def]
    """Seven signs in each of eight bytes -> eight, of which an even number is set."""
    parity = sevens ^ (sevens >> 4)
    parity = parity ^ (parity >> 2)
    parity = parity ^ (parity >> 1)
    return sevens | ((parity & _EACH_BYTE) << 7)


@inline
def spread_sevens64(words):  # type: ignore[no-untyped-def]
    """Of each half four times seven bits -> four bytes."""
    low = (words & (_BOTH * 127)) | ((words & (_BOTH * 0x3F80)) << 1)
    return low | ((words & (_BOTH * 0x1FC000)) << 2) | ((words & (_BOTH * 0xFE00000)) << 3)
