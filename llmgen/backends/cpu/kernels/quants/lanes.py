"""Blocks of 32 weights, one block of each of ROWS rows at a time: a row's sum lives in one lane.

    sum[row] += d[row] * dx * dot(weights[row], q)  (+ m[row] * e)

with one instruction for all rows, block after block.  Nothing has to be added up across
lanes, any number of blocks goes, and the arithmetic of a row is that of the panel kernel.

For that, 4- and 5-bit weights are turned until a register holds a group of four weights of
every row, a row in each 32-bit lane; the four activations that they meet are spread over
all lanes as they are loaded.  8-bit weights, which are widened to 16 bits and so fill
twice the registers, stay as they lie, 128 bits a row, and their products are turned: two
rounds of adding up neighbours leave a sum in each row's lane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from llmgen.backends.cpu.kernels.dot import ARM, NATIVE, WIDTH, emit_short_sum, emit_sum, unsigned
from llmgen.backends.cpu.kernels.quants.block import Lanes
from llmgen.backends.cpu.kernels.quants.vectors import emit_nibble_lookup
from llmgen.backends.cpu.kernels.simd import (
    I32,
    I64,
    Vec,
    call_intrinsic,
    constant,
    i8x16,
    loader,
    offset,
    permute,
    pointer,
    splat_value,
    storer,
    unary,
    undefined,
)

ROWS = WIDTH // 4
"""Rows that a step takes: as many as a register has 32-bit lanes."""
f32_rows = Vec("f32", ROWS)
"""A value per row."""
i32_rows, i16_rows, i8_rows = Vec("i32", ROWS), Vec("i16", ROWS), Vec("i8", ROWS)
load_rows, store_rows = loader(f32_rows), storer(f32_rows)
zero_rows = constant(f32_rows, [0.0] * ROWS)
first_row = unary(f32_rows, types.float32, lambda b, v: b.extract_element(v, ir.Constant(I32, 0)))

bytes_rows, shorts_rows = Vec("i8", WIDTH), Vec("i16", WIDTH // 2)
pointers = types.UniTuple(types.intp, ROWS // 4)
"""Where the blocks of every fourth row are."""


@intrinsic
def scatter_rows(typing_context: Any, p: Any, stride: Any, values: Any) -> Any:
    """Store the lanes ``stride`` bytes apart."""

    def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
        p = args[0]
        for lane in range(ROWS):
            b.store(b.extract_element(args[2], ir.Constant(I32, lane)), pointer(b, p), align=4)
            p = b.add(p, args[1])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, f32_rows), generate


@intrinsic
def every_fourth(typing_context: Any, p: Any, stride: Any) -> Any:
    """The blocks of the rows 0, 4 ..., given that of row 0.

    The compiler must not see how they hang together: it would keep one address and
    compute the others anew for every block.
    """

    def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(I64, [I64])
        starts = [b.add(args[0], b.mul(args[1], ir.Constant(I64, r))) for r in range(0, ROWS, 4)]
        return context.make_tuple(b, pointers, [b.asm(kind, "", "=r,0", [p], False) for p in starts])

    return pointers(types.intp, types.intp), generate


@intrinsic
def moved(typing_context: Any, starts: Any, nbytes: Any) -> Any:
    """All of them, nbytes on."""

    def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
        return context.make_tuple(
            b, pointers, [b.add(b.extract_value(args[0], i), args[1]) for i in range(len(pointers))]
        )

    return pointers(pointers, types.intp), generate


Loads = Callable[[int, Any], list[Any]]
"""``rows(at, type)``: what lies ``at`` bytes behind the start of the block, of each row."""


def lanes(
    raw: Sequence[Vec],
    read: Callable[[Any, Loads], list[Any]],
    prepare: Callable[[Any, list[Any]], list[Any]],
    bits: int,
    has_offset: bool,
    zero: int = 0,
) -> Lanes:
    """The functions of a type.

    read: (builder, rows) -> what is brought into registers of the types ``raw``.
    prepare: (builder, that) -> d and, with ``has_offset``, m, a float per row each; then
    registers of weights.  Unsigned bytes: as ``turned``, group after group.  Signed shorts
    (``bits`` 16): by quarters of a block, each as from ``beside``.  Signed bytes (8) are as
    ``turned`` too.  zero: what all weights are too large by.
    """
    wide = bits == 16
    weight = shorts_rows if wide else bytes_rows
    kind = types.Tuple([f32_rows] * (1 + has_offset) + [weight] * (16 if wide else 8))
    d_at = 64 if wide else 32
    less = 128 if bits == 8 and NATIVE else zero
    registers = types.Tuple(list(raw))

    @intrinsic
    def load(typing_context: Any, p: Any, stride: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            stride = args[1]
            steps = [b.mul(stride, ir.Constant(I64, r)) for r in range(4)]
            fours = [b.extract_value(args[0], i) for i in range(ROWS // 4)]
            starts = [b.add(first, step) for first in fours for step in steps]

            def rows(at: int, memory: Any) -> list[Any]:
                return [b.load(pointer(b, offset(b, p, at)), align=1, typ=memory) for p in starts]

            return context.make_tuple(b, registers, read(b, rows))

        return registers(pointers, types.intp), generate

    @intrinsic
    def unpack(typing_context: Any, loaded: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            values = [b.extract_value(args[0], i) for i in range(len(registers))]
            prepared = prepare(b, values)
            if bits == 8:
                prepared = [unsigned(b, v) if v.type == weight.llvm else v for v in prepared]
            return context.make_tuple(b, kind, prepared)

        return kind(registers), generate

    @intrinsic
    def dots(typing_context: Any, u: Any, x: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            packed, x = args
            rest = [b.extract_value(packed, i) for i in range(1 + has_offset, len(kind))]
            return _wide_dots(b, rest, x) if wide else _dots(b, rest, x, bits, less)

        return i32_rows(kind, types.intp), generate

    @intrinsic
    def scale(typing_context: Any, u: Any, x: Any, dots: Any, sums: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            packed, x, dots, sums = args
            # the two scales meet while the dots, which take longest, are not there yet
            factor = b.fmul(b.extract_value(packed, 0), _scalar(b, x, d_at))
            sums = _fma(b, b.sitofp(dots, f32_rows.llvm), factor, sums)
            return _fma(b, b.extract_value(packed, 1), _scalar(b, x, d_at + 4), sums) if has_offset else sums

        return f32_rows(kind, types.intp, i32_rows, f32_rows), generate

    return Lanes(load, unpack, dots, scale)


def nibble_codes(
    first: int,
    values: Sequence[int],
    scale: Vec,
    memory: Any,
    as_float: Callable[[Any, Any], Any],
    bits: int,
    zero: int = 0,
) -> Lanes:
    """The functions of a type whose nibbles, from byte ``first`` on, choose among 16 values.

    scale: the type of all rows' scales, of which each lies before its block as ``memory``;
    as_float(builder, scales): what they are.
    """

    def read(b: Any, rows: Loads) -> list[Any]:
        return [gathered(b, rows(0, memory)), *turned(b, rows(first, i8x16.llvm))]

    def prepare(b: Any, loaded: list[Any]) -> list[Any]:
        scales, *groups = loaded
        both = [*groups, *(upper_nibbles(b, v) for v in groups)]
        return [as_float(b, scales), *(emit_nibble_lookup(b, v, values) for v in both)]

    return lanes([scale, *[bytes_rows] * 4], read, prepare, bits, False, zero)


def _fma(b: Any, x: Any, y: Any, z: Any) -> Any:
    return call_intrinsic(b, f"llvm.fma.v{ROWS}f32", f32_rows.llvm, [x, y, z])


def _scalar(b: Any, x: Any, at: int) -> Any:
    """The float at x + at for all rows."""
    value = b.load(pointer(b, offset(b, x, at)), align=4, typ=ir.FloatType())
    return splat_value(b, value, f32_rows.llvm)


# ---- unpacking -----------------------------------------------------------------------


def turned(b: Any, runs: Sequence[Any], words: Sequence[int] = range(4)) -> list[Any]:
    """16 bytes of each row -> registers of bytes: the chosen words of four bytes, each of all rows, in their order."""
    # 4 x 4 words change places in each 128 bits
    v = beside(b, runs)
    out = []
    for word in words:
        low, high = (_zipped(b, v[k], v[k + 1], word & 2, 1) for k in (0, 2))
        out.append(b.bitcast(_zipped(b, low, high, 2 * (word & 1), 2), bytes_rows.llvm))
    return out


def beside(b: Any, runs: Sequence[Any]) -> list[Any]:
    """16 bytes of each row -> four registers of words: the k-th holds the rows k, k + 4 ... side by side."""
    four = ir.VectorType(I32, 4)
    registers = []
    for k in range(4):
        parts = [b.bitcast(run, four) for run in runs[k::4]]
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [permute(b, x, range(2 * x.type.count), y) for x, y in pairs]
        registers.append(parts[0])
    return registers


def _zipped(b: Any, x: Any, y: Any, first: int, run: int) -> Any:
    """Of every 128 bits the words first, first + 1 of x and of y, alternating in runs."""
    order = [(0, 0), (0, ROWS), (1, 0), (1, ROWS)] if run == 1 else [(0, 0), (1, 0), (0, ROWS), (1, ROWS)]
    return permute(b, x, [c + first + i + of for c in range(0, ROWS, 4) for i, of in order], y)


def first_words(b: Any, rows: Loads, at: int) -> Any:
    """i32 [ROWS]: the word at ``at`` of each row, whose block has at least 12 more bytes."""
    (words,) = turned(b, rows(at, i8x16.llvm), [0])
    return b.bitcast(words, ir.VectorType(I32, ROWS))


def gathered(b: Any, values: Sequence[Any]) -> Any:
    """Scalars, one a row -> a vector."""
    vector = undefined(ir.VectorType(values[0].type, ROWS))
    for i, value in enumerate(values):
        vector = b.insert_element(vector, value, ir.Constant(I32, i))
    return vector


def bytes_constant(value: int) -> Any:
    """A register of equal bytes."""
    return ir.Constant(bytes_rows.llvm, [value] * WIDTH)


def low_nibbles(b: Any, v: Any) -> Any:
    return b.and_(v, bytes_constant(15))


def high_nibbles(b: Any, v: Any) -> Any:
    return low_nibbles(b, upper_nibbles(b, v))


def upper_nibbles(b: Any, v: Any) -> Any:
    """The high nibbles, and above them bits of the neighbours: there is no shift of bytes."""
    words = ir.VectorType(I64, WIDTH // 8)
    return b.bitcast(b.lshr(b.bitcast(v, words), ir.Constant(words, [4] * words.count)), v.type)


def with_fifth(b: Any, words: Any, registers: Sequence[Any]) -> list[Any]:
    """16 added to the weights whose fifth bit is set; words: i32 [ROWS], bit i belongs to weight i of the block."""
    rows = b.bitcast(words, bytes_rows.llvm)
    out = []
    for g, v in enumerate(registers):
        bits = [1 << (4 * g + j) % 8 for j in range(4)] * ROWS
        masks = ir.Constant(bytes_rows.llvm, [bit - 256 if bit == 128 else bit for bit in bits])
        spread = permute(b, rows, [4 * row + g // 2 for row in range(ROWS) for _ in range(4)])
        is_set = b.icmp_unsigned("==", b.and_(spread, masks), masks)
        out.append(b.or_(v, b.select(is_set, bytes_constant(16), bytes_constant(0))))
    return out


def widened(b: Any, v: Any) -> list[Any]:
    """Signed bytes -> 16 bits: the even ones, the odd ones."""
    shorts = b.bitcast(v, shorts_rows.llvm)
    eight = ir.Constant(shorts_rows.llvm, [8] * shorts_rows.n)
    return [b.ashr(b.shl(shorts, eight), eight), b.ashr(shorts, eight)]


# ---- dot products ----------------------------------------------------------------------


def _spread(b: Any, x: Any, at: int, kind: Any) -> Any:
    """The four bytes at x + at in every lane."""
    if ARM:  # whose sdot takes them from any lane of a register
        words = b.load(pointer(b, offset(b, x, at // 16 * 16)), align=1, typ=ir.VectorType(I32, 4))
        return b.bitcast(permute(b, words, [at % 16 // 4] * ROWS), kind)
    word = b.load(pointer(b, offset(b, x, at)), align=1, typ=I32)
    return b.bitcast(splat_value(b, word, ir.VectorType(I32, ROWS)), kind)


def _dots(b: Any, w: Sequence[Any], x: Any, bits: int, less: int) -> Any:
    """i32 [ROWS]: weights of ``bits`` bits, less a number, times the 32 int8 of the record at x."""
    start = None
    if less:
        total = b.load(pointer(b, offset(b, x, 40)), align=4, typ=I32)
        start = splat_value(b, b.mul(total, ir.Constant(I32, -less)), i32_rows.llvm)
    return emit_sum(b, [(v, _spread(b, x, 4 * g, v.type)) for g, v in enumerate(w)], bits, start)


def _wide_dots(b: Any, w: Sequence[Any], x: Any) -> Any:
    """i32 [ROWS]: signed weights times the 32 int16 at x; |w x| <= 128 * 32767, 32 of them fit."""
    quarter = ir.VectorType(shorts_rows.llvm.element, 8)
    runs = []
    for q in range(4):
        run = b.load(pointer(b, offset(b, x, 16 * q)), align=1, typ=quarter)
        runs.append(permute(b, run, list(range(8)) * (ROWS // 4)))
    sums = [emit_short_sum(b, [(w[4 * q + k], run) for q, run in enumerate(runs)]) for k in range(4)]
    # four words a row, the rows side by side: two rounds of adding up neighbours leave the rows in their order
    low, high = (_neighbours(b, sums[k], sums[k + 1], 1) for k in (0, 2))
    return _neighbours(b, low, high, 2)


def _neighbours(b: Any, x: Any, y: Any, run: int) -> Any:
    return b.add(_zipped(b, x, y, 0, run), _zipped(b, x, y, 2, run))
