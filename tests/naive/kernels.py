"""Naive numpy twins of the kernels: one formula each, no blocking, no tricks.

Shapes are written as [outer, ..., inner]; a weight matrix is [n_out, n_in]. Every
function computes in the floating type of its input, so a test chooses float64
for truth or float32 for a like-for-like comparison.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

BLOCK = 32  # activations are quantized in blocks of 32 values


def rms_norm(x: Array, weight: Array | None, eps: float) -> Array:
    """x [..., n] divided by the root of its mean square, times weight (broadcast over [..., n])."""
    y = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + x.dtype.type(eps))
    return y if weight is None else y * weight.astype(x.dtype)


def layer_norm(x: Array, weight: Array | None, bias: Array | None, eps: float) -> Array:
    """x [..., n] shifted to mean 0 and scaled to variance 1, times weight, plus bias."""
    centred = x - np.mean(x, axis=-1, keepdims=True)
    variance = np.mean(centred * centred, axis=-1, keepdims=True)
    y = centred / np.sqrt(variance + x.dtype.type(eps))
    if weight is not None:
        y = y * weight.astype(x.dtype)
    return y if bias is None else y + bias.astype(x.dtype)


def silu(x: Array) -> Array:
    """x * sigmoid(x), elementwise."""
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-x))


def gelu(x: Array) -> Array:
    """The tanh form of GELU, elementwise (llama.cpp's, without its float16 table)."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x)))


def soft_cap(x: Array, cap: float) -> Array:
    """x squeezed smoothly into (-cap, cap); cap 0 leaves it alone."""
    return x if cap == 0 else cap * np.tanh(x / cap)


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


# --- attention ---------------------------------------------------------------------------


def softmax(x: Array) -> Array:
    """Along the last axis; a row of only -inf would be NaN and never occurs under a causal mask."""
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def attention(
    q: Array, k: Array, v: Array, scale: float, *, n_past: int = 0, window: int = 0, cap: float = 0.0
) -> Array:
    """Causal attention with grouped heads.

    q [n, n_heads, d] stands at positions n_past .. n_past+n-1; k [n_past+n, n_kv_heads, d] and
    v [n_past+n, n_kv_heads, dv] at 0 .. . With a window w a query sees w keys, itself included;
    0 means all. Returns [n, n_heads, dv]. One query at a time: no quadratic memory.
    """
    n, n_heads, _ = q.shape
    group = n_heads // k.shape[1]
    out = np.empty((n, n_heads, v.shape[2]), q.dtype)
    for i in range(n):
        end = n_past + i + 1
        start = max(0, end - window) if window else 0
        for head in range(n_heads):
            keys, values = k[start:end, head // group], v[start:end, head // group]
            scores = soft_cap(keys @ q[i, head] * q.dtype.type(scale), cap)
            out[i, head] = softmax(scores) @ values
    return out


# --- quantized activations ----------------------------------------------------------------


def quantize_blocks(x: Array) -> tuple[Array, Array]:
    """Activations as int8 in blocks of 32: integers int8 [..., n/32, 32] and scales float32 [..., n/32].

    The scale is max|x| / 127 and rounding is half to even; a block of zeros has scale 0.
    """
    blocks = np.asarray(x, np.float32).reshape(*x.shape[:-1], -1, BLOCK)
    peak = np.max(np.abs(blocks), axis=-1)
    inverse = np.zeros_like(peak)
    np.divide(np.float32(127), peak, out=inverse, where=peak > 0)
    integers = np.rint(blocks * inverse[..., None]).astype(np.int8)
    return integers, peak * np.float32(1 / 127)


def round_activations(x: Array) -> Array:
    """What is left of x [..., n] after int8 quantization in blocks of 32, as float32."""
    integers, scale = quantize_blocks(x)
    return (integers * scale[..., None]).reshape(x.shape).astype(np.float32)


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
