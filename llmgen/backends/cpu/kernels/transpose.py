"""Eight rows of 32 bytes become groups of [8 rows][4 bytes], or of [8 rows][8 bytes] as ``smmla`` takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numba.core import types
from numba.extending import intrinsic

from llmgen.backends.cpu.kernels.arm import MATRICES
from llmgen.backends.cpu.kernels.simd import i8x32, i32x8, i64x4, offset, permute, pointer

_EIGHT = types.UniTuple(i8x32, 8)


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
