"""Naive numpy twins of single kernels, beside those of ``llmgen.backends.numpy.functions``.

Shapes are written as [outer, ..., inner]; a weight matrix is [n_out, n_in].
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from llmgen.backends.numpy.functions import Array, quantize_blocks, round_activations

# --- rotary position embedding -------------------------------------------------------------


@dataclass(frozen=True)
class Rope:
    """How positions rotate queries and keys: ggml's rope_ext, in its own terms."""

    n_rot: int
    base: float = 10000.0
    neox: bool = False  # pairs (i, i + n_rot/2) instead of (2i, 2i+1)
    freq_scale: float = 1.0  # 1 / scaling factor
    factors: Array | None = None  # [n_rot/2], divide the angles
    yarn: bool = False
    n_ctx_orig: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    magnitude: float = 1.0  # multiplies cosine and sine


def rope_tables(rope: Rope, positions: Array) -> tuple[Array, Array]:
    """Cosine and sine, float64 [n_tokens, n_rot/2]. YaRN: arXiv 2309.00071, section 3."""
    pair = np.arange(rope.n_rot // 2)
    frequency = rope.base ** (-2.0 * pair / rope.n_rot)
    if rope.factors is not None:
        frequency = frequency / rope.factors
    if rope.yarn:
        keep = yarn_ramp(rope, pair)  # 1: extrapolate as trained, 0: interpolate
        frequency = frequency * (rope.freq_scale * (1 - keep) + keep)
    else:
        frequency = frequency * rope.freq_scale
    angle = np.asarray(positions, np.float64)[:, None] * frequency
    return np.cos(angle) * rope.magnitude, np.sin(angle) * rope.magnitude


def yarn_ramp(rope: Rope, pair: Array) -> Array:
    """The share of the unscaled frequency that each pair keeps, [n_rot/2] in 0..1."""

    def dimension(rotations: float) -> float:
        return rope.n_rot * math.log(rope.n_ctx_orig / (rotations * 2 * math.pi)) / (2 * math.log(rope.base))

    low = max(0, math.floor(dimension(rope.beta_fast)))
    high = min(rope.n_rot - 1, math.ceil(dimension(rope.beta_slow)))
    return 1 - np.clip((pair - low) / max(0.001, high - low), 0, 1)


def rotate(x: Array, rope: Rope, positions: Array) -> Array:
    """x [n_tokens, n_heads, head_dim] with its first n_rot dimensions rotated, the others kept."""
    cos, sin = (t[:, None, :].astype(x.dtype) for t in rope_tables(rope, positions))
    half = rope.n_rot // 2
    first, second = (
        (slice(0, half), slice(half, 2 * half))
        if rope.neox
        else (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    )
    y = x.copy()
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., first] * sin + x[..., second] * cos
    return y


# --- quantized products ---


def matmul(weight: Array, x: Array) -> Array:
    """x [..., n_in] times the float weight [n_out, n_in], in the type of x."""
    return x @ weight.astype(x.dtype).T


def matmul_int8(weight: Array, x: Array) -> Array:
    """x quantized to int8 per 32, times the dequantized weight [n_out, n_in]: float64 [..., n_out].

    The truth for every kernel with quantized activations: only the order of its
    additions may differ from this.
    """
    return round_activations(x).astype(np.float64) @ weight.astype(np.float64).T


def matvec_int8_q8_0(weight_ints: Array, weight_scales: Array, x: Array) -> Array:
    """The same for Q8_0 weights in the order of a real kernel: an integer dot per block, then scales.

    weight_ints int8 [n_out, n/32, 32], weight_scales float32 [n_out, n/32], x [n] -> float32 [n_out].
    """
    ints, scales = quantize_blocks(x)
    dots = np.einsum("obi,bi->ob", weight_ints.astype(np.int32), ints.astype(np.int32))
    return np.sum(dots.astype(np.float32) * (weight_scales * scales), axis=-1, dtype=np.float32)
