"""The tensor types that can be multiplied by: a line of facts for each.

The functions of a type, a ``Block`` named after it, are in the module that its line
names; ``matvec``, ``panel`` and ``rows`` make its three kernels out of them when they
are asked for one.  Nothing here imports numba: the planner reads the lines in every
process, and only the compiler process reads the functions.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmgen.backends.cpu.kernels.layout import (
    ACTIVATION_FORMATS,
    PANEL_BLOCK,
    PANEL_PRODUCTS,
    PANEL_SCALES,
    SHORT_SUMS,
)
from llmgen.gguf.types import GGMLType


@dataclass(frozen=True)
class QuantType:
    """What the planner must know about a type."""

    key: str  # the ggml name in lower case; the kernels are called after it
    module: str  # of this package, where its functions are
    activations: str  # their format in its matrix-vector kernel, see layout.ACTIVATION_FORMATS
    bits: int = 32  # of a weight in a panel; 8: signed; 32: float32
    halves: bool = False  # every 16 weights have their own scale
    # of a weight times its small scale, where both are integers whose product fits 8 bits; 8: signed
    product_bits: int = 0
    read_past: int = 0  # bytes that the kernels may read past the last block of a row

    @property
    def block(self) -> int:
        """Weights of one block in the file."""
        return GGMLType[self.key.upper()].block_size

    @property
    def block_bytes(self) -> int:
        return GGMLType[self.key.upper()].block_bytes

    @property
    def is_float(self) -> bool:
        """Whether the activations stay float32."""
        return self.activations == "float32"

    @property
    def step(self) -> int:
        """Weights that the matrix-vector kernel takes at once."""
        return ACTIVATION_FORMATS[self.activations].values

    @property
    def two_scales(self) -> bool:
        """Whether 32 weights of a panel have two scales."""
        return self.halves and not self.product_bits

    @property
    def panel_bits(self) -> int:
        """Of a weight in a panel, or of its product with its small scale."""
        return self.product_bits or self.bits

    @property
    def panel_bytes(self) -> int:
        """Bytes of a panel of 16 rows of a quantized type, per 32 weights."""
        return PANEL_BLOCK + (PANEL_PRODUCTS if self.product_bits else PANEL_SCALES * (1 + self.halves))

    @property
    def groups(self) -> int:
        """Groups of four weights that the panel kernel's inner loop takes, see panel.block_step."""
        return 1 if self.is_float else min(SHORT_SUMS.get(self.bits, 8), 4 if self.halves else 8)

    @property
    def matvec(self) -> str:
        return f"quants.matvec:{self.key}"

    @property
    def panel(self) -> str:
        return f"quants.{'float_panel' if self.is_float else 'panel'}:{self.key}"

    @property
    def turned(self) -> str:
        return f"quants.turned:{self.key}"

    @property
    def embed(self) -> str:
        return f"quants.rows:{self.key}"


TABLE = {
    line.key: line
    for line in (
        QuantType("f64", "floats", "float32", read_past=512),
        QuantType("f32", "floats", "float32", read_past=256),
        QuantType("f16", "floats", "float32", read_past=128),
        QuantType("bf16", "floats", "float32", read_past=128),
        QuantType("q4_0", "legacy", "int8", bits=4),
        QuantType("q4_1", "legacy", "int8", bits=4),
        QuantType("q5_0", "legacy", "int8", bits=5),
        QuantType("q5_1", "legacy", "int8", bits=5),
        QuantType("q8_0", "legacy", "int16", bits=8),
        QuantType("q1_0", "ternary", "int8_super", bits=2),
        QuantType("q2_0", "ternary", "int8_super", bits=2),
        QuantType("q2_k", "low_bits", "int8_super", bits=2, halves=True, product_bits=6),
        QuantType("q3_k", "low_bits", "int8_super", bits=3, halves=True, product_bits=8),
        QuantType("q4_k", "kquants", "int8_super", bits=4, read_past=16),
        QuantType("q5_k", "kquants", "int8_super", bits=5, read_past=16),
        QuantType("q6_k", "kquants", "int8_super", bits=6, halves=True, read_past=16),
        QuantType("tq1_0", "ternary", "int8_super", bits=2),
        QuantType("tq2_0", "ternary", "int8_super", bits=2),
        QuantType("iq1_s", "iq1", "int8_super", bits=5),
        QuantType("iq1_m", "iq1", "int8_super", bits=5, halves=True),
        QuantType("iq2_xxs", "iq2", "int8_super", bits=7),
        QuantType("iq2_xs", "iq2", "int8_super", bits=7, halves=True),
        QuantType("iq2_s", "iq2", "int8_super", bits=7, halves=True),
        QuantType("iq3_xxs", "iq3", "int8_super", bits=7),
        QuantType("iq3_s", "iq3", "int8_super", bits=5),
        QuantType("iq4_nl", "iq4", "int8", bits=8),
        QuantType("iq4_xs", "iq4", "int8_super", bits=8),
        QuantType("mxfp4", "fp4", "int8", bits=5),
        QuantType("nvfp4", "fp4", "int8_super", bits=5, halves=True),
    )
}
"""By the lower-case name of the ggml type."""
