"""The 8-bit dot product, chosen once per CPU.

Everything here takes 64 (or 32) bytes of weights and of activations and adds the
products in groups of four neighbours into 32-bit lanes:

    lane i += w[4i] x[4i] + w[4i+1] x[4i+1] + w[4i+2] x[4i+2] + w[4i+3] x[4i+3]

Activations are signed and lie in [-127, 127].  Weights are unsigned and small
(4, 5 or 6 bits) or signed 8 bits.  The levels differ in the instruction only:

- avx512vnni, avxvnni: ``vpdpbusd`` does it in one step, unsigned times signed.
- avx2: ``vpmaddubsw`` adds pairs into 16 bits, which saturate: 4-bit weights leave
  room for 8 such sums (8 * 2 * 15 * 127 = 30480), 5-bit for 4 (31496), 6-bit for
  2 (32004); signed 8-bit weights give one (|w| times the activation with w's sign:
  2 * 128 * 127 = 32512).  ``vpmaddwd`` with ones then adds pairs into 32 bits.
- generic: widening multiplications that LLVM lowers on any CPU.

All of them are exact, so all levels give the same integers.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from llmgen.kernels.cpu import target
from llmgen.kernels.simd import (
    I32,
    call_intrinsic,
    i8x64,
    i32x16,
    offset,
    permute,
    pointer,
    splat_value,
)

LEVEL = target().level
NATIVE = LEVEL in ("avx512vnni", "avxvnni")
"""vpdpbusd is there: signed weights are made unsigned by adding 128."""
WIDTH = 64 if LEVEL == "avx512vnni" else 32
"""Bytes of one register of the dot product."""
ADDS = {4: 8, 5: 4, 6: 2}
"""vpmaddubsw results that fit into 16 bits, by the bits of a weight."""


def _vector(elem: int, n: int) -> ir.VectorType:
    return ir.VectorType(ir.IntType(elem), n)


def _constant(elem: int, n: int, value: int) -> ir.Constant:
    return ir.Constant(_vector(elem, n), [value] * n)


def _pairs_to_i16(b: Any, u: Any, s: Any) -> Any:
    """u8 [n] * s8 [n] -> i16 [n/2], neighbours added; the caller sees to it that nothing saturates."""
    n = u.type.count
    if LEVEL == "avx2":
        return call_intrinsic(b, "llvm.x86.avx2.pmadd.ub.sw", _vector(16, n // 2), [u, s])
    products = b.mul(b.zext(u, _vector(16, n)), b.sext(s, _vector(16, n)))
    return b.add(permute(b, products, range(0, n, 2)), permute(b, products, range(1, n, 2)))


def _pairs_to_i32(b: Any, v: Any) -> Any:
    """i16 [n] -> i32 [n/2], neighbours added."""
    n = v.type.count
    if LEVEL == "avx2":
        return call_intrinsic(b, "llvm.x86.avx2.pmadd.wd", _vector(32, n // 2), [v, _constant(16, n, 1)])
    wide = b.sext(v, _vector(32, n))
    return b.add(permute(b, wide, range(0, n, 2)), permute(b, wide, range(1, n, 2)))


def _accumulate(b: Any, acc: Any, u: Any, s: Any) -> Any:
    """acc + dot(u, s) by vpdpbusd."""
    name = f"llvm.x86.avx512.vpdpbusd.{u.type.count * 8}"
    return call_intrinsic(b, name, acc.type, [acc, u, s])


def _abs_and_signed(b: Any, w: Any, x: Any) -> tuple[Any, Any]:
    """(|w|, x with the sign of w); x is 0 where w is 0."""
    n = w.type.count
    zero = _constant(8, n, 0)
    magnitude = call_intrinsic(b, f"llvm.abs.v{n}i8", w.type, [w, ir.Constant(ir.IntType(1), 0)])
    if LEVEL == "avx2":
        return magnitude, call_intrinsic(b, "llvm.x86.avx2.psign.b", w.type, [x, w])
    return magnitude, b.select(b.icmp_signed("<", w, zero), b.sub(zero, x), x)


def _halves(b: Any, v: Any) -> list[Any]:
    """A 64-byte vector as registers of WIDTH bytes."""
    return [v] if WIDTH == 64 else [permute(b, v, range(32)), permute(b, v, range(32, 64))]


def _join(b: Any, parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else permute(b, parts[0], range(16), parts[1])


def emit_dots(b: Any, pairs: list[tuple[Any, Any]], bits: int) -> Any:
    """i32x16: the sum of the dots of (u8x64, i8x64) pairs with weights of ``bits`` bits."""
    out = []
    for part in range(64 // WIDTH):
        registers = [(_halves(b, u)[part], _halves(b, s)[part]) for u, s in pairs]
        if NATIVE:
            acc = _constant(32, WIDTH // 4, 0)
            for u, s in registers:
                acc = _accumulate(b, acc, u, s)
        else:
            acc = _wide_sum(b, [_pairs_to_i16(b, u, s) for u, s in registers], ADDS[bits])
        out.append(acc)
    return _join(b, out)


def _wide_sum(b: Any, shorts: list[Any], adds: int) -> Any:
    """Sum of i16 vectors as i32 pairs, ``adds`` of them added in 16 bits at a time."""
    total = None
    for start in range(0, len(shorts), adds):
        run = shorts[start]
        for v in shorts[start + 1 : start + adds]:
            run = b.add(run, v)
        wide = _pairs_to_i32(b, run)
        total = wide if total is None else b.add(total, wide)
    return total


def emit_signed_pair(b: Any, pairs: list[tuple[Any, Any]], negative_sums: Any) -> Any:
    """i32x16: the sum of the dots of (i8x64, i8x64) pairs; negative_sums i32x16: minus the sums of all x in fours."""
    parts = []
    for part in range(64 // WIDTH):
        registers = [(_halves(b, w)[part], _halves(b, x)[part]) for w, x in pairs]
        if NATIVE:
            lanes = range(part * WIDTH // 4, (part + 1) * WIDTH // 4)
            acc = b.shl(permute(b, negative_sums, lanes), _constant(32, WIDTH // 4, 7))
            for w, x in registers:
                acc = _accumulate(b, acc, b.xor(w, _constant(8, WIDTH, -128)), x)
        else:
            acc = _wide_sum(b, [_pairs_to_i16(b, *_abs_and_signed(b, w, x)) for w, x in registers], 1)
        parts.append(acc)
    return _join(b, parts)


@intrinsic
def dot4(typing_context: Any, u: Any, s: Any) -> Any:
    """i32x16: dot of weights of up to 6 bits."""

    def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
        return emit_dots(b, [(args[0], args[1])], 6)

    return i32x16(i8x64, i8x64), generate


@intrinsic
def dot4_pair(typing_context: Any, u0: Any, s0: Any, u1: Any, s1: Any) -> Any:
    """i32x16: dot(u0, s0) + dot(u1, s1), weights of up to 6 bits."""

    def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
        return emit_dots(b, [(args[0], args[1]), (args[2], args[3])], 6)

    return i32x16(i8x64, i8x64, i8x64, i8x64), generate


@intrinsic
def dot4_signed_pair(typing_context: Any, w0: Any, x0: Any, w1: Any, x1: Any, negative_sums: Any) -> Any:
    """i32x16: dot(w0, x0) + dot(w1, x1) of signed bytes, see ``emit_signed_pair``."""

    def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
        return emit_signed_pair(b, [(args[0], args[1]), (args[2], args[3])], args[4])

    return i32x16(i8x64, i8x64, i8x64, i8x64, i32x16), generate


# ---- one block of a panel: 16 rows times TOKENS tokens ------------------------------

TOKENS = 8 if WIDTH == 64 else 4
"""Tokens that one pass of the panel kernel takes: as many as the registers hold."""


def _broadcast(b: Any, address: Any) -> Any:
    """4 bytes of one token in every lane of a register."""
    value = b.load(pointer(b, address), align=4, typ=I32)
    return b.bitcast(splat_value(b, value, _vector(32, WIDTH // 4)), _vector(8, WIDTH))


def emit_panel_dots(b: Any, weights: Any, x: Any, groups: int, bits: int, negative_sums: Any) -> list[Any]:
    """TOKENS times i32x16 (the rows): dots over ``groups`` groups of four weights.

    weights: address of [groups][16 rows][4] bytes; x: address of [groups][8 tokens][4]
    int8; bits: 4, 5, 6 (unsigned) or 8 (signed); negative_sums: address of minus
    the sum of x over the block, int32 [tokens], for signed weights.
    """
    registers = 64 // WIDTH
    vector = _vector(8, WIDTH)
    sums: list[list[Any]] = [[] for _ in range(TOKENS)]
    shorts: list[list[list[Any]]] = [[[] for _ in range(registers)] for _ in range(TOKENS)]
    if NATIVE:
        for t in range(TOKENS):
            start = _constant(32, WIDTH // 4, 0)
            if bits == 8:
                value = b.load(pointer(b, offset(b, negative_sums, 4 * t)), align=4, typ=I32)
                start = splat_value(b, b.shl(value, ir.Constant(I32, 7)), _vector(32, WIDTH // 4))
            sums[t] = [start] * registers
    for g in range(groups):
        w = [b.load(pointer(b, offset(b, weights, 64 * g + WIDTH * r)), align=1, typ=vector) for r in range(registers)]
        if NATIVE and bits == 8:
            w = [b.xor(v, _constant(8, WIDTH, -128)) for v in w]
        for t in range(TOKENS):
            xb = _broadcast(b, offset(b, x, 32 * g + 4 * t))
            for r in range(registers):
                if NATIVE:
                    sums[t][r] = _accumulate(b, sums[t][r], w[r], xb)
                else:
                    _add_short(b, shorts[t][r], sums[t], r, w[r], xb, bits, g)
    for t in range(TOKENS):
        for r in range(registers):
            if shorts[t][r]:
                _widen(b, shorts[t][r], sums[t], r)
    return [_join(b, s) for s in sums]


def _add_short(b: Any, run: list[Any], sums: list[Any], r: int, w: Any, x: Any, bits: int, g: int) -> None:
    """Add one product to the 16-bit sum ``run`` (a list of at most one value), widening it when it is full."""
    product = _pairs_to_i16(b, *_abs_and_signed(b, w, x)) if bits == 8 else _pairs_to_i16(b, w, x)
    run[:] = [b.add(run[0], product)] if run else [product]
    if (g + 1) % ADDS.get(bits, 1) == 0:
        _widen(b, run, sums, r)


def _widen(b: Any, run: list[Any], sums: list[Any], r: int) -> None:
    wide = _pairs_to_i32(b, run[0])
    run.clear()
    if len(sums) > r:
        sums[r] = b.add(sums[r], wide)
    else:
        sums.append(wide)


def tile_type() -> types.Type:
    """The accumulators of a pass: TOKENS times f32x16."""
    from llmgen.kernels.simd import f32x16

    return types.UniTuple(f32x16, TOKENS)
