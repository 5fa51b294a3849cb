"""The quant types: for each, how a row is multiplied, unpacked and read.

A type is one ``Quant`` record in ``legacy``, ``kquants`` or ``floats``; ``matvec``,
``panel`` and ``rows`` make the kernels of all types out of these records.  To add a
type is to add one record, its line in ``TABLE``, and it is covered by the oracle
test over the table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class QuantKernels:
    """What the planner must know about a type; the kernels are named after ``key``."""

    key: str  # 'q4_1'
    record: str  # the activation format of its matrix-vector kernel, see layout.RECORDS
    step: int  # weights that the matrix-vector kernel takes at once
    block: int  # weights of one block in the file
    panel_bytes: int  # bytes of a panel of 16 rows, per 32 weights
    groups: int  # groups of four weights that the panel kernel's inner loop takes, see panel.block_step
    overread: int  # bytes that the kernels may read behind the last block of a row

    @property
    def matvec(self) -> str:
        return f"quants.matvec:{self.key}"

    @property
    def panel(self) -> str:
        return f"quants.panel:{self.key}"

    @property
    def embed(self) -> str:
        return f"quants.rows:{self.key}"


_SCALED = 8 * 64 + 2 * 64  # 8 groups of four weights for 16 rows, a scale and an offset per row

TABLE = {
    kernels.key: kernels
    for kernels in (
        QuantKernels("f32", "float32", 64, 1, 32 * 64, 1, 256),
        QuantKernels("f16", "float32", 64, 1, 32 * 64, 1, 128),
        QuantKernels("bf16", "float32", 64, 1, 32 * 64, 1, 128),
        QuantKernels("q4_0", "int8", 32, 32, _SCALED, 8, 0),
        QuantKernels("q4_1", "int8", 32, 32, _SCALED, 8, 0),
        QuantKernels("q5_0", "int8", 32, 32, _SCALED, 4, 0),
        QuantKernels("q5_1", "int8", 32, 32, _SCALED, 4, 0),
        QuantKernels("q8_0", "int16", 32, 32, _SCALED, 8, 0),
        QuantKernels("q4_k", "int8_super", 256, 256, _SCALED, 8, 16),
        QuantKernels("q5_k", "int8_super", 256, 256, _SCALED, 4, 16),
        QuantKernels("q6_k", "int8_super", 256, 256, _SCALED + 128, 2, 16),
    )
}
"""By the lower-case name of the ggml type."""
