"""Blocks of a tensor as float32: by the gguf package, and here for the types that it leaves out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgen.errors import UnsupportedModelError
from llmgen.gguf.types import GGMLType

Array = NDArray[Any]


def dequantize(rows: Array, kind: GGMLType) -> Array:
    """Rows of blocks, uint8 [n, bytes] -> float32 [n, values].

    Raises UnsupportedModelError for a type that the gguf package, as it is installed, cannot read.
    """
    if kind is GGMLType.F64:
        return rows.view("<f8").astype(np.float32)
    if kind in (GGMLType.Q1_0, GGMLType.Q2_0):
        return _few_bits(rows, kind, 1 if kind is GGMLType.Q1_0 else 2)
    from gguf.quants import dequantize

    from gguf import GGMLQuantizationType

    if kind in (GGMLType.F32, GGMLType.F16):
        rows = rows.view("<f4" if kind is GGMLType.F32 else "<f2")
    try:
        return np.asarray(dequantize(rows, GGMLQuantizationType(int(kind))), np.float32)
    except (ValueError, NotImplementedError):
        raise UnsupportedModelError(
            f"the gguf package that is installed cannot read tensors of the type {kind.name}; "
            "install a newer one, or use the cpu backend"
        ) from None


def _few_bits(rows: Array, kind: GGMLType, bits: int) -> Array:
    """Q1_0: w = d where the bit is set, else -d; Q2_0: w = d (q - 1).  Source: ggml-quants.c of ggml."""
    blocks = rows.reshape(len(rows), -1, kind.block_bytes)
    scales = np.ascontiguousarray(blocks[..., :2]).view("<f2").astype(np.float32)
    codes = blocks[..., 2:, None] >> np.arange(0, 8, bits, dtype=np.uint8) & (1 << bits) - 1
    numbers = (2 * codes if bits == 1 else codes).astype(np.float32) - np.float32(1)
    return (numbers.reshape(*blocks.shape[:2], -1) * scales).reshape(len(rows), -1)
