"""8x8 transposition of 4-byte groups: rows of bytes become groups of [8 rows][4 bytes]."""

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.extending import intrinsic

from llmgen.backends.cpu.kernels.simd import i8x32, i32x8, offset, permute, pointer


def _transposed_storer(stride: int) -> Any:
    """``store(out, rows)``: group g of each of the eight 32-byte rows goes to out + g * stride."""
    eight = types.UniTuple(i8x32, 8)

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

        return types.void(types.intp, eight), generate

    return store


store_transposed_64 = _transposed_storer(64)
store_transposed_32 = _transposed_storer(32)
