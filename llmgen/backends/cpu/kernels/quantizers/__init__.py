"""The types that weights are quantized to here; the gguf package does the others.

A quantizer is a kernel ``void quantize(weights, n, out, scratch)``: n blocks of float32 at
``weights`` become n blocks of the type at ``out``.  All levels give the same bytes.  Nothing
here imports numba; see ``affine`` and ``symmetric`` for how the scales are found.
"""

from __future__ import annotations

QUANTIZERS = {
    "q2_k": "quantizers.affine",
    "q4_k": "quantizers.affine",
    "q5_k": "quantizers.affine",
    "q3_k": "quantizers.symmetric",
    "q6_k": "quantizers.symmetric",
    "iq4_nl": "quantizers.symmetric",
    "iq4_xs": "quantizers.symmetric",
}
"""Module of the kernel by the lower-case name of the ggml type."""

SCRATCH = 4096
"""Bytes that a quantizer works in."""


def quantizer(key: str) -> str:
    """The name of the kernel that quantizes to a type."""
    return f"{QUANTIZERS[key]}:{key}"
