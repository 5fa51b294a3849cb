"""Products of prompt tokens on 64-bit Arm: eight rows of a panel times four tokens, with all sums in registers.

- ``sdot`` (FEAT_DotProd), by element: four weights of four rows each, times the same four
  activations of one token.
- ``smmla`` (FEAT_I8MM), twice the products: eight activations of two tokens each, times eight
  weights of two rows each.

      sums[token][row] += activations[token][i] * weights[row][i]   over i

The integers are those of every other level.  Source: Arm Architecture Reference Manual for A-profile,
chapter "A64 Advanced SIMD and floating-point instruction descriptions".
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from llmgen.backends.cpu.kernels.simd import I32, call_intrinsic, i8x16, offset, permute, pointer
from llmgen.backends.cpu.runtime.cpu import target

MATRICES = target().level == "i8mm"
"""Whether smmla is used: then groups of eight weights lie together, else groups of four."""
TOKENS = 4
ROW_BYTES = 64 if MATRICES else 32
"""Bytes of a group of eight rows, which the same group of the other eight rows follows."""
_FOUR = ir.VectorType(I32, 4)


def emit_dots(b: Any, w: Any, x: Any, n: int) -> list[Any]:
    """Of each token i32 [8 rows]: the products of n weights and activations, 16 or 32.

    w: address of the first of 8 rows in a panel; x: address of the first token in a tile.
    """
    return _by_matrices(b, w, x, n // 8) if MATRICES else _by_elements(b, w, x, n // 4)


def _by_elements(b: Any, w: Any, x: Any, groups: int) -> list[Any]:
    sums = [[_zero()] * 2 for _ in range(TOKENS)]
    for g in range(groups):
        weights = [_load(b, w, 64 * g + 16 * k, i8x16.llvm) for k in range(2)]
        tokens = _load(b, x, 32 * g, _FOUR)
        for t, rows in enumerate(sums):
            token = b.bitcast(permute(b, tokens, [t] * 4), i8x16.llvm)
            for k in range(2):
                rows[k] = _call(b, "sdot", rows[k], weights[k], token)
    return [permute(b, low, range(8), high) for low, high in sums]


def _by_matrices(b: Any, w: Any, x: Any, groups: int) -> list[Any]:
    sums = [[_zero()] * 4 for _ in range(TOKENS // 2)]
    for g in range(groups):
        weights = [_load(b, w, 128 * g + 16 * k, i8x16.llvm) for k in range(4)]
        for pair, rows in enumerate(sums):
            tokens = _load(b, x, 64 * g + 32 * pair, i8x16.llvm)
            for k in range(4):
                rows[k] = _call(b, "smmla", rows[k], tokens, weights[k])
    return [_row_of(b, rows, half) for rows in sums for half in (0, 2)]


def _row_of(b: Any, sums: list[Any], first: int) -> Any:
    """Lanes first, first + 1 of all four matrices."""
    pairs = [
        permute(b, v, [first, first + 1, 4 + first, 5 + first], u)
        for v, u in zip(sums[::2], sums[1::2], strict=True)
    ]
    return permute(b, pairs[0], range(8), pairs[1])


def _zero() -> Any:
    return ir.Constant(_FOUR, [0] * 4)


def _load(b: Any, address: Any, at: int, kind: Any) -> Any:
    return b.load(pointer(b, offset(b, address, at)), align=16, typ=kind)


def _call(b: Any, name: str, sums: Any, v: Any, u: Any) -> Any:
    return call_intrinsic(b, f"llvm.aarch64.neon.{name}.v4i32.v16i8", _FOUR, [sums, v, u])
