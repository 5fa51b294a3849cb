"""The tensor types of ggml: their ids, and how many bytes a block of values takes.

This is all that the file reader needs to find a tensor's last byte; the backends know what
the bytes mean.

Source of ids and sizes: ``enum ggml_type`` in ggml/include/ggml.h and the block
structs in ggml/src/ggml-common.h of llama.cpp.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any


class GGMLType(IntEnum):
    """A tensor type: its id in the file, with the size of one block of values.

    ``block_size`` is in values, ``block_bytes`` in bytes.  A row of a tensor is a
    whole number of blocks.  An id that is not listed gives a type that is not ``known``, of
    which nothing but a name to show can be said.
    """

    block_size: int
    block_bytes: int

    def __new__(cls, type_id: int, block_size: int = 1, block_bytes: int = 1) -> GGMLType:
        member = int.__new__(cls, type_id)
        member._value_ = type_id
        member.block_size = block_size
        member.block_bytes = block_bytes
        return member

    #         id  values  bytes
    F32 = 0, 1, 4
    F16 = 1, 1, 2
    Q4_0 = 2, 32, 18
    Q4_1 = 3, 32, 20
    Q5_0 = 6, 32, 22
    Q5_1 = 7, 32, 24
    Q8_0 = 8, 32, 34
    Q8_1 = 9, 32, 36
    Q2_K = 10, 256, 84
    Q3_K = 11, 256, 110
    Q4_K = 12, 256, 144
    Q5_K = 13, 256, 176
    Q6_K = 14, 256, 210
    Q8_K = 15, 256, 292
    IQ2_XXS = 16, 256, 66
    IQ2_XS = 17, 256, 74
    IQ3_XXS = 18, 256, 98
    IQ1_S = 19, 256, 50
    IQ4_NL = 20, 32, 18
    IQ3_S = 21, 256, 110
    IQ2_S = 22, 256, 82
    IQ4_XS = 23, 256, 136
    I8 = 24, 1, 1
    I16 = 25, 1, 2
    I32 = 26, 1, 4
    I64 = 27, 1, 8
    F64 = 28, 1, 8
    IQ1_M = 29, 256, 56
    BF16 = 30, 1, 2
    TQ1_0 = 34, 256, 54
    TQ2_0 = 35, 256, 66
    MXFP4 = 39, 32, 17
    NVFP4 = 40, 64, 36
    Q1_0 = 41, 128, 18
    Q2_0 = 42, 64, 18

    @classmethod
    def _missing_(cls, value: Any) -> GGMLType | None:
        if not isinstance(value, int) or not 0 <= value < 1 << 32:
            return None
        other = int.__new__(cls, value)
        other._value_, other._name_ = value, REMOVED_TYPES.get(value, f"type {value}")
        other.block_size, other.block_bytes = 1, 0
        return other

    @property
    def known(self) -> bool:
        """Whether the size of its blocks is known."""
        return self.block_bytes > 0

    def bytes_for(self, n_values: int) -> int:
        """Bytes that ``n_values`` values take; ``n_values`` must be whole blocks."""
        return n_values // self.block_size * self.block_bytes


# ids that ggml has removed; files with them exist
REMOVED_TYPES = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}

_NO_WEIGHTS = ("Q8_1", "Q8_K", "I8", "I16", "I32", "I64")
WEIGHT_TYPES = tuple(kind for kind in GGMLType if kind.name not in _NO_WEIGHTS)
"""The types that weights have; the others are for whole numbers, and for activations while they are computed."""
