"""Eight rows of 32 bytes become groups of [8 rows][4 bytes], or of [8 rows][8 bytes] as ``smmla`` takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numba.core import types
from numba.extending import intrinsic

from llmgen.backends.cpu.kernels.arm import MATRICES
from llmgen.backends.cpu.kernels.simd import i8x32, i8x64, i32x8, i32x16, i64x4, offset, permute, pointer

_EIGHT, _EIGHT_PAIRS = types.UniTuple(i8x32, 8), types.UniTuple(i8x64, 8)


def transposed_storer(stride: int) -> Any:
    """``store(out, rows)``: group g of each of the eight 32-byte rows goes to out + g * stride."""

    @intrinsic
    def store(typing_context: Any, out: Any, rows: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            v = [b.bitcast(b.extract_value(args[1], r), i32x8.llvm) for r in range(8)]
            # pairs of rows by groups, then pairs of pairs, then the halves of the register
            pairs = []
            for r in range(0, 8, 2):
                pairs.append(permute(b, v[r], [0, 8, 1, 9, 4, 12, 5, 13], v[r + 1]))
                pairs.append(permute(b, v[r], [2, 10, 3, 11, 6, 14, 7, 15], v[r + 1]))
            quads = []
            for half in (0, 4):
                for k in (0, 1):
                    low, high = pairs[half + k], pairs[half + k + 2]
                    quads.append(permute(b, low, [0, 1, 8, 9, 4, 5, 12, 13], high))
                    quads.append(permute(b, low, [2, 3, 10, 11, 6, 7, 14, 15], high))
            for g in range(4):
                for half, lanes in ((0, [0, 1, 2, 3, 8, 9, 10, 11]), (4, [4, 5, 6, 7, 12, 13, 14, 15])):
                    column = permute(b, quads[g], lanes, quads[g + 4])
                    b.store(column, pointer(b, offset(b, args[0], stride * (g + half))), align=1)
            return context.get_dummy_value()

        return types.void(types.intp, _EIGHT), generate

    return store


@intrinsic
def store_pairs_of_panel(typing_context: Any, out: Any, apart: Any, rows: Any) -> Any:
    """As ``store_transposed_64``, of eight rows of twice 32 bytes; the second 32 go ``apart`` bytes further."""

    def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
        v = [b.bitcast(b.extract_value(args[2], r), i32x16.llvm) for r in range(8)]

        def in_fours(x: Any, lanes: Sequence[int], y: Any) -> Any:
            """Lanes of every four of x and, from 4 on, of y."""
            order = [4 * q + (lane if lane < 4 else lane + 12) for q in range(4) for lane in lanes]
            return permute(b, x, order, y)

        # words of four rows change places within fours, then the fours of both halves of the rows come together
        fours = []
        for r in (0, 4):
            low = [in_fours(v[k], [0, 4, 1, 5], v[k + 1]) for k in (r, r + 2)]
            high = [in_fours(v[k], [2, 6, 3, 7], v[k + 1]) for k in (r, r + 2)]
            fours.append(
                [in_fours(x, words, y) for x, y in (low, high) for words in ([0, 1, 4, 5], [2, 3, 6, 7])]
            )
        places = [args[0], b.add(args[0], args[1])]
        for g, (first, last) in enumerate(zip(*fours, strict=True)):
            for q in range(4):
                column = permute(b, first, [*range(4 * q, 4 * q + 4), *range(16 + 4 * q, 20 + 4 * q)], last)
                b.store(column, pointer(b, offset(b, places[q // 2], 64 * (g + 4 * (q % 2)))), align=1)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, _EIGHT_PAIRS), generate


def _eights_storer(stride: int, order: Sequence[int]) -> Any:
    """``store(out, rows)``: eight bytes g of each of the rows, in this order, go to out + g * stride."""

    @intrinsic
    def store(typing_context: Any, out: Any, rows: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            v = [b.bitcast(b.extract_value(args[1], r), i64x4.llvm) for r in order]
            for g in range(4):
                for k in range(0, 8, 2):
                    pair = permute(b, v[k], [g, 4 + g], v[k + 1])
                    b.store(pair, pointer(b, offset(b, args[0], stride * g + 8 * k)), align=1)
            return context.get_dummy_value()

        return types.void(types.intp, _EIGHT), generate

    return store


store_transposed_64 = transposed_storer(64)
store_rows_of_panel = _eights_storer(128, range(8)) if MATRICES else store_transposed_64
"""``store(out, rows)``: 32 weights of eight rows, half of a panel; the other half's lie HALF_PANEL bytes behind."""
HALF_PANEL = 64 if MATRICES else 32
store_tile = _eights_storer(64, (0, 1, 4, 5, 2, 3, 6, 7)) if MATRICES else transposed_storer(32)
"""``store(out, rows)``: 32 activations of eight tokens, see layout.TILE_BLOCK."""
