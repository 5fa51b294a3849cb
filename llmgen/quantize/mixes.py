"""The names that a file can be quantized to.

A mix has a type for most matrices, and rules that give some tensors more bits (see ``rules``).

Source of names and numbers: ``enum llama_ftype`` in include/llama.h and
``llama_ftype_get_default_type`` in src/llama-quant.cpp of llama.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmgen.errors import UsageError, shown
from llmgen.gguf import GGMLType


@dataclass(frozen=True)
class Mix:
    """A name, the type of most matrices, and the number that ``general.file_type`` has for it."""

    name: str
    type: GGMLType
    file_type: int

    @property
    def is_float(self) -> bool:
        """Whether all matrices get the one type."""
        return self.type in (GGMLType.F32, GGMLType.F16, GGMLType.BF16)


MIXES = {
    mix.name: mix
    for mix in (
        Mix("F32", GGMLType.F32, 0),
        Mix("F16", GGMLType.F16, 1),
        Mix("BF16", GGMLType.BF16, 32),
        Mix("Q8_0", GGMLType.Q8_0, 7),
        Mix("Q6_K", GGMLType.Q6_K, 18),
        Mix("Q5_K_M", GGMLType.Q5_K, 17),
        Mix("Q5_K_S", GGMLType.Q5_K, 16),
        Mix("Q5_1", GGMLType.Q5_1, 9),
        Mix("Q5_0", GGMLType.Q5_0, 8),
        Mix("Q4_K_M", GGMLType.Q4_K, 15),
        Mix("Q4_K_S", GGMLType.Q4_K, 14),
        Mix("Q4_1", GGMLType.Q4_1, 3),
        Mix("Q4_0", GGMLType.Q4_0, 2),
        Mix("IQ4_NL", GGMLType.IQ4_NL, 25),
        Mix("IQ4_XS", GGMLType.IQ4_XS, 30),
        Mix("MXFP4_MOE", GGMLType.MXFP4, 38),
        Mix("Q3_K_L", GGMLType.Q3_K, 13),
        Mix("Q3_K_M", GGMLType.Q3_K, 12),
        Mix("Q3_K_S", GGMLType.Q3_K, 11),
        Mix("Q2_K", GGMLType.Q2_K, 10),
        Mix("TQ2_0", GGMLType.TQ2_0, 37),
        Mix("TQ1_0", GGMLType.TQ1_0, 36),
    )
}
"""By name, the most bits first."""

_OTHER_NAMES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "MXFP4": "MXFP4_MOE"}
"""As llama.cpp's llama-quantize has them (tools/quantize/quantize.cpp)."""


def mix_named(name: str) -> Mix:
    """The mix of that name, in either case.  Raises UsageError."""
    upper = name.upper()
    found = MIXES.get(_OTHER_NAMES.get(upper, upper))
    if found is None:
        raise UsageError(f"there is no type {shown(name)} to quantize to; choose one of {', '.join(MIXES)}")
    return found
