"""Tiles of AMX: a dot product of 16 tokens with 16 rows in one instruction (Sapphire Rapids and later).

A tile register holds up to 16 rows of 64 bytes.  ``tdpbssd`` multiplies signed bytes of the first
tile (here tokens) with signed bytes of the second (weights), and adds groups of four products to
int32 sums:

    sums[token][row] += activations[token][4 g + i] * weights[g][row][i]   over g and i

The integers are those of every other level.  Source: Intel's Architecture Instruction Set
Extensions Programming Reference, chapter "Intel AMX".
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from llmgen.backends.cpu.kernels.abi import inline
from llmgen.backends.cpu.kernels.simd import call_intrinsic, pointer, store_i64

_I8, _I64 = ir.IntType(8), ir.IntType(64)
SETS = 2
"""Sets of registers that take turns, so that one product need not wait for the other's store."""
_SUMS, _TOKENS, _WEIGHTS = 0, SETS, 2 * SETS
"""The first register of each kind; a set has one of each."""


def _configuration(half: bool) -> list[int]:
    """The 64 bytes that ``ldtilecfg`` loads, as words: palette 1, bytes of a row from 16 on, rows from 48 on."""
    shapes = {_SUMS: (16, 64), _TOKENS: (16, 16 if half else 32), _WEIGHTS: (4 if half else 8, 64)}
    data = bytearray(64)
    data[0] = 1
    for kind, (rows, row_bytes) in shapes.items():
        for tile in range(kind, kind + SETS):
            data[16 + 2 * tile : 18 + 2 * tile] = row_bytes.to_bytes(2, "little")
            data[48 + tile] = rows
    return [int.from_bytes(data[i : i + 8], "little") for i in range(0, 64, 8)]


def _number(tile: int) -> ir.Constant:
    return ir.Constant(_I8, tile)


@intrinsic
def _load_configuration(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
        call_intrinsic(b, "llvm.x86.ldtilecfg", ir.VoidType(), [pointer(b, args[0])])
        return context.get_dummy_value()

    return types.void(types.intp), generate


def configuring(half: bool) -> Any:
    """``begin(space)``: configure this thread's tiles for ``dots``; space: 64 bytes for the configuration."""
    words = tuple(_configuration(half))

    @inline
    def begin(space):  # type: ignore[no-untyped-def]
        for i in range(8):
            store_i64(space + 8 * i, words[i])
        _load_configuration(space)

    return begin


@intrinsic
def end(typing_context: Any) -> Any:
    """Give the tiles back, so that the system need not save them."""

    def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
        call_intrinsic(b, "llvm.x86.tilerelease", ir.VoidType(), [])
        return context.get_dummy_value()

    return types.void(), generate


def dots(one_set: int) -> Any:
    """``step(x, w, out)``: int32 [16 tokens][16 rows] to out, of 32 weights (16 where so configured).

    x: int8 [16 tokens], 32 bytes apart; w: [groups][16 rows][4] bytes; one_set: the registers used.
    """
    sums, left, right = _SUMS + one_set, _TOKENS + one_set, _WEIGHTS + one_set

    @intrinsic
    def step(typing_context: Any, x: Any, w: Any, out: Any) -> Any:
        def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
            nothing = ir.VoidType()

            def at(name: str, tile: int, address: Any, stride: int) -> None:
                arguments = [_number(tile), pointer(b, address), ir.Constant(_I64, stride)]
                call_intrinsic(b, name, nothing, arguments)

            call_intrinsic(b, "llvm.x86.tilezero", nothing, [_number(sums)])
            at("llvm.x86.tileloadd64", left, args[0], 32)
            at("llvm.x86.tileloadd64", right, args[1], 64)
            call_intrinsic(b, "llvm.x86.tdpbssd", nothing, [_number(n) for n in (sums, left, right)])
            at("llvm.x86.tilestored64", sums, args[2], 64)
            return context.get_dummy_value()

        return types.void(types.intp, types.intp, types.intp), generate

    return step
