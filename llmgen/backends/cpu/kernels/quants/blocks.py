"""Blocks of a type as float32: whole tensors, for the quantizers."""

from __future__ import annotations

from typing import Any

from numba.core import types

from llmgen.backends.cpu.kernels.abi import I, native
from llmgen.backends.cpu.kernels.quants import TABLE
from llmgen.backends.cpu.kernels.quants.block import functions_of


def _make(dequantize: Any, size: int, nbytes: int) -> Any:
    @native(types.void(I, I, I))
    def dequantized(blocks: int, n: int, out: int) -> None:
        """n blocks of ``size`` values become float32 at ``out``."""
        for block in range(n):
            dequantize(blocks + nbytes * block, out + 4 * size * block)

    return dequantized


def __getattr__(key: str) -> Any:
    """The kernel of a type, made when it is asked for."""
    return _make(functions_of(key).dequantize, TABLE[key].block, TABLE[key].block_bytes)
