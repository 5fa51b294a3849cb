"""The 8-bit dot product, chosen once per CPU.

Everything here takes 64 (or 32) bytes of weights and of activations and adds the
products in groups of four neighbours into 32-bit lanes:

    lane i += w[4i] x[4i] + w[4i+1] x[4i+1] + w[4i+2] x[4i+2] + w[4i+3] x[4i+3]

Activations are signed and lie in [-127, 127].  Weights are unsigned and small
(2 to 7 bits) or signed 8 bits.  The levels differ in the instruction only:

- amx: prompts meet whole tiles of weights (see amx.py); everything else as avx512vnni.
- avx512vnni, avxvnni: ``vpdpbusd`` does it in one step, unsigned times signed (``vpdpwssd``
  for 16 bits).
- avx2: ``vpmaddubsw`` adds pairs into 16 bits, which saturate: 4-bit weights leave
  room for 8 such sums (8 * 2 * 15 * 127 = 30480), 5-bit for 4 (31496), 6-bit for
  2 (32004), 7-bit for 1 (32258); signed 8-bit weights give one (|w| times the activation with w's sign:
  2 * 128 * 127 = 32512).  ``vpmaddwd`` with ones then adds pairs into 32 bits.
- neon: ``sdot`` does it in one step, signed times signed; weights of up to 7 bits are signed too.
- i8mm: prompts by ``smmla`` (see arm.py); everything else as neon.
- generic: widening multiplications that LLVM lowers on any CPU.

All of them are exact, so all levels give the same integers.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from llmgen.backends.cpu.kernels.layout import SHORT_SUMS, TILE_NEG, TILE_NEG0
from llmgen.backends.cpu.kernels.simd import (
    I32,
    Vec,
    call_intrinsic,
    i8x64,
    i32x16,
    offset,
    permute,
    pointer,
    splat_value,
)
from llmgen.backends.cpu.runtime.cpu import target

LEVEL = target().level
AVX512 = LEVEL in ("amx", "avx512vnni")
NATIVE = AVX512 or LEVEL == "avxvnni"
"""vpdpbusd is there: signed weights are made unsigned by adding 128."""
ARM = LEVEL in ("i8mm", "neon")
"""sdot is there."""
FUSED = NATIVE or ARM
"""One instruction multiplies and adds groups of four into 32 bits: nothing is summed in 16."""
WIDTH = 64 if AVX512 else 32
"""Bytes of one register of the dot product."""


def _vector(elem: int, n: int) -> ir.VectorType:
    return ir.VectorType(ir.IntType(elem), n)


def _constant(elem: int, n: int, value: int) -> ir.Constant:
    return ir.Constant(_vector(elem, n), [value] * n)


def _pairs_to_i16(b: Any, u: Any, s: Any) -> Any:
    """u8 [n] * s8 [n] -> i16 [n/2], neighbours added; the caller sees to it that nothing saturates."""
    n = u.type.count
    if LEVEL == "avx2":
        return call_intrinsic(b, "llvm.x86.avx2.pmadd.ub.sw", _vector(16, n // 2), [u, s])
    return _neighbours(b, b.mul(b.zext(u, _vector(16, n)), b.sext(s, _vector(16, n))))


def _pairs_to_i32(b: Any, v: Any) -> Any:
    """i16 [n] -> i32 [n/2], neighbours added."""
    if LEVEL == "avx2":
        return pairs_times(b, v, _constant(16, v.type.count, 1))
    return _neighbours(b, b.sext(v, _vector(32, v.type.count)))


def pairs_times(b: Any, v: Any, w: Any) -> Any:
    """i16 [n] * i16 [n] -> i32 [n/2], neighbours added."""
    n = v.type.count
    if LEVEL == "avx2":
        return call_intrinsic(b, "llvm.x86.avx2.pmadd.wd", _vector(32, n // 2), [v, w])
    return _neighbours(b, b.mul(b.sext(v, _vector(32, n)), b.sext(w, _vector(32, n))))


def _accumulate(b: Any, acc: Any, u: Any, s: Any) -> Any:
    """acc + dot(u, s) by vpdpbusd, or by sdot in pieces of 16 bytes."""
    if ARM:
        return _by_sdot(b, acc, u, s)
    name = f"llvm.x86.avx512.vpdpbusd.{u.type.count * 8}"
    return call_intrinsic(b, name, acc.type, [acc, u, s])


def _by_sdot(b: Any, acc: Any, w: Any, x: Any) -> Any:
    parts = []
    for at in range(0, w.type.count, 16):
        w16, x16 = permute(b, w, range(at, at + 16)), permute(b, x, range(at, at + 16))
        lanes = permute(b, acc, range(at // 4, at // 4 + 4))
        name = "llvm.aarch64.neon.sdot.v4i32.v16i8"
        parts.append(call_intrinsic(b, name, _vector(32, 4), [lanes, w16, x16]))
    while len(parts) > 1:
        parts = [
            permute(b, v, range(2 * v.type.count), w) for v, w in zip(parts[::2], parts[1::2], strict=True)
        ]
    return parts[0]


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
        if FUSED:
            acc = _constant(32, WIDTH // 4, 0)
            for u, s in registers:
                acc = _accumulate(b, acc, u, s)
        else:
            acc = _wide_sum(b, [_pairs_to_i16(b, u, s) for u, s in registers], SHORT_SUMS[bits])
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


@intrinsic
def dot4(typing_context: Any, u: Any, s: Any) -> Any:
    """i32x16: dot of weights of up to 6 bits."""

    def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
        return emit_dots(b, [(args[0], args[1])], 6)

    return i32x16(i8x64, i8x64), generate


def row_dot(bits: int, zero: int) -> Any:
    """``f(w, x)``, i32x16: dots of w - zero, for unsigned weights of up to 7 bits or, with 8 bits, signed ones."""
    signed = bits == 8
    centre = 128 if signed and NATIVE else zero

    @intrinsic
    def function(typing_context: Any, w: Any, x: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            out = []
            for w, x in zip(*(_halves(b, v) for v in args), strict=True):
                out.append(_centred(b, unsigned(b, w) if signed else w, x, centre, signed))
            return _join(b, out)

        return i32x16(i8x64, i8x64), generate

    return function


def _centred(b: Any, w: Any, x: Any, centre: int, signed: bool) -> Any:
    """i32: the dots of w - centre and x."""
    middle = _constant(8, WIDTH, centre - 256 if centre > 127 else centre)
    if FUSED:
        # sums begin with what the centre takes off: rows that meet the same activations share it
        start = _constant(32, WIDTH // 4, 0)
        if centre:
            start = b.sub(start, _accumulate(b, start, middle, x))
        return _accumulate(b, start, w, x)
    if signed:
        return _pairs_to_i32(b, _pairs_to_i16(b, *_abs_and_signed(b, w, x)))
    pairs = _pairs_to_i16(b, w, x)
    return _pairs_to_i32(b, b.sub(pairs, _pairs_to_i16(b, middle, x)) if centre else pairs)


def unsigned(b: Any, w: Any) -> Any:
    """Signed bytes as the dot product takes them: 128 added for vpdpbusd, as they are elsewhere."""
    return b.xor(w, _constant(8, w.type.count, -128)) if NATIVE else w


# ---- rows side by side: see quants/lanes.py ---------------------------------------------


def emit_sum(b: Any, pairs: list[tuple[Any, Any]], bits: int, start: Any = None) -> Any:
    """i32: the dots of (weights, signed) registers of bytes, added to ``start``.

    Weights are unsigned and have ``bits`` bits; signed 8 bits are as from :func:`unsigned`.
    """
    if not FUSED:
        if bits == 8:
            total = _wide_sum(b, [_pairs_to_i16(b, *_abs_and_signed(b, w, x)) for w, x in pairs], 1)
        else:
            total = _wide_sum(b, [_pairs_to_i16(b, u, s) for u, s in pairs], SHORT_SUMS[bits])
        return total if start is None else b.add(total, start)
    acc = _constant(32, WIDTH // 4, 0) if start is None else start
    for u, s in pairs:
        acc = _accumulate(b, acc, u, s)
    return acc


def emit_short_sum(b: Any, pairs: list[tuple[Any, Any]]) -> Any:
    """i32 [n/2]: neighbours' products of (i16 [n], i16 [n]), added, and all pairs of registers added."""
    n = pairs[0][0].type.count
    out = _vector(32, n // 2)
    acc = _constant(32, n // 2, 0) if NATIVE else None
    for w, x in pairs:
        if NATIVE:
            acc = call_intrinsic(b, f"llvm.x86.avx512.vpdpwssd.{n * 16}", out, [acc, w, x])
            continue
        if LEVEL == "avx2":
            products = call_intrinsic(b, "llvm.x86.avx2.pmadd.wd", out, [w, x])
        else:
            products = b.mul(b.sext(w, _vector(32, n)), b.sext(x, _vector(32, n)))
            if not ARM:
                products = _neighbours(b, products)
        acc = b.add(acc, products) if acc else products
    # smlal adds to what it multiplies: neighbours are added up once, at the end
    return _neighbours(b, acc) if ARM else acc


def _neighbours(b: Any, v: Any) -> Any:
    """Neighbours added."""
    n = v.type.count
    return b.add(permute(b, v, range(0, n, 2)), permute(b, v, range(1, n, 2)))


# ---- a panel: 16 rows times TOKENS tokens ----------------------------------------------

TOKENS = 8 if WIDTH == 64 else 4
"""Tokens that one pass of the panel kernel takes: as many as the registers hold."""
REGISTERS = 64 // WIDTH
"""Registers that hold one group of four weights of all 16 rows."""


def _register(elem: str) -> Vec:
    return Vec(elem, WIDTH * 8 // {"i8": 8, "i16": 16, "i32": 32}[elem])


class PanelDots:
    """The running sums of a pass over a panel, for weights of ``bits`` bits (8: signed), less ``zero``.

    ``first(x)`` begins the totals of a block of 32, or with ``halves`` ``first(x)`` and
    ``second(x)`` those of its halves; x: address of the block in a tile.
    ``start(negative_sums)`` begins the sums of ``groups`` groups of four weights of each row,
    ``add(sums, weights, x)`` takes in ``at_once`` of them, ``total(totals, sums)`` adds what
    was summed up to 32-bit totals.

    weights: address of [16 rows][4] bytes; x: address of [8 tokens][4] int8;
    negative_sums: address of minus the sums of the block's x, int32 [8 tokens].
    """

    def __init__(self, bits: int, groups: int, zero: int = 0, halves: bool = False) -> None:
        short = not FUSED and bits in SHORT_SUMS
        self.at_once = 1 if LEVEL == "generic" else groups
        n = TOKENS * REGISTERS
        sums = types.UniTuple(_register("i16" if short else "i32"), n)
        self.sums, self.totals = sums, types.UniTuple(_register("i32"), n)
        # the sums of whole blocks of signed weights begin with what was added to the weights
        by_sums = bits == 8 and not halves
        self.start, self.add = _panel_start(sums, by_sums), _panel_add(sums, bits, self.at_once)
        self.total = _panel_total(sums, self.totals)
        less = 128 if bits == 8 and NATIVE and halves else zero
        self.first = _panel_totals(self.totals, less, TILE_NEG0 if halves else TILE_NEG)
        self.second = _panel_totals(self.totals, less, TILE_NEG, TILE_NEG0)


def _panel_totals(totals: Any, zero: int, at: int, less: int | None = None) -> Any:
    """``f(x)``: of each token zero times minus the sum of its activations, which stands at x + at."""
    vector = totals.dtype.llvm

    @intrinsic
    def function(typing_context: Any, x: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            values = []
            for t in range(TOKENS if zero else 0):
                value = emit_int32(b, args[0], at + 4 * t)
                if less is not None:
                    value = b.sub(value, emit_int32(b, args[0], less + 4 * t))
                filled = splat_value(b, b.mul(value, ir.Constant(I32, zero)), vector)
                values += [filled] * REGISTERS
            return context.make_tuple(
                b, totals, values or [ir.Constant(vector, [0] * vector.count)] * totals.count
            )

        return totals(types.intp), generate

    return function


def emit_int32(b: Any, address: Any, at: int) -> Any:
    return b.load(pointer(b, offset(b, address, at)), align=4, typ=I32)


def _panel_start(sums: Any, negative: bool) -> Any:
    vector = sums.dtype.llvm

    @intrinsic
    def start(typing_context: Any, negative_sums: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            values = [ir.Constant(vector, [0] * vector.count)] * sums.count
            if NATIVE and negative:
                for t in range(TOKENS):
                    value = emit_int32(b, args[0], 4 * t)
                    filled = splat_value(b, b.shl(value, ir.Constant(I32, 7)), vector)
                    values[t * REGISTERS : (t + 1) * REGISTERS] = [filled] * REGISTERS
            return context.make_tuple(b, sums, values)

        return sums(types.intp), generate

    return start


def _panel_add(sums: Any, bits: int, groups: int) -> Any:
    """``f(sums, weights, x)``: some groups, one after the other, added to the sums."""

    @intrinsic
    def add(typing_context: Any, acc: Any, weights: Any, x: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            packed, w_at, x_at = args
            values = [b.extract_value(packed, i) for i in range(sums.count)]
            for g in range(groups):
                values = _add_group(b, values, offset(b, w_at, 64 * g), offset(b, x_at, 32 * g), bits)
                if IN_ORDER:
                    values = [_settled(b, value) for value in values]
            return context.make_tuple(b, sums, values)

        return sums(sums, types.intp, types.intp), generate

    return add


def _add_group(b: Any, sums: list[Any], w_at: Any, x_at: Any, bits: int) -> list[Any]:
    """The sums of all tokens and registers, and one group of four weights of each row."""
    vector = _vector(8, WIDTH)
    w = [b.load(pointer(b, offset(b, w_at, WIDTH * r)), align=1, typ=vector) for r in range(REGISTERS)]
    if bits == 8:
        w = [unsigned(b, v) for v in w]
    out = []
    for t in range(TOKENS):
        value = b.load(pointer(b, offset(b, x_at, 4 * t)), align=4, typ=I32)
        xb = b.bitcast(splat_value(b, value, _vector(32, WIDTH // 4)), vector)
        out += [_panel_sum(b, sums[t * REGISTERS + r], w[r], xb, bits) for r in range(REGISTERS)]
    return out


IN_ORDER = LEVEL == "avx2"
"""Whether groups have to be kept apart.  The compiler would collect all groups of a token, whose weights do not fit
into 16 registers; in a loop, which it leaves alone, the processor mistakes the end of each (a third of the time)."""


def _settled(b: Any, value: Any) -> Any:
    """The value, from an instruction that is none and that the compiler cannot look into."""
    return b.asm(ir.FunctionType(value.type, [value.type]), "", "=x,0", [value], side_effect=True)


def _panel_sum(b: Any, acc: Any, w: Any, x: Any, bits: int) -> Any:
    if FUSED:
        return _accumulate(b, acc, w, x)
    if bits in SHORT_SUMS:
        return b.add(acc, _pairs_to_i16(b, w, x))
    pairs = _pairs_to_i16(b, *(_abs_and_signed(b, w, x) if bits == 8 else (w, x)))
    return b.add(acc, _pairs_to_i32(b, pairs))


def _panel_total(sums: Any, totals: Any) -> Any:
    widen = sums != totals

    @intrinsic
    def total(typing_context: Any, before: Any, acc: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            out = []
            for i in range(totals.count):
                value = b.extract_value(args[1], i)
                value = _pairs_to_i32(b, value) if widen else value
                out.append(b.add(b.extract_value(args[0], i), value))
            return context.make_tuple(b, totals, out)

        return totals(totals, sums), generate

    return total


def joined(b: Any, packed: Any, t: int) -> Any:
    """The totals of one token over the 16 rows, i32x16."""
    return _join(b, [b.extract_value(packed, t * REGISTERS + r) for r in range(REGISTERS)])
