"""What each kind of KV cache keeps of a row, by its formula (llmgen/backends/cpu/kernels/kv)."""

from __future__ import annotations

import numpy as np

Array = np.ndarray
BLOCKS = {"q8_0": 32, "q4_0": 32, "nf4": 64}
NF4 = np.array(
    "-1 -0.6961928009986877 -0.5250730514526367 -0.39491748809814453 -0.28444138169288635 -0.18477343022823334 "
    "-0.09105003625154495 0 0.07958029955625534 0.16093020141124725 0.24611230194568634 0.33791524171829224 "
    "0.44070982933044434 0.5626170039176941 0.7229568362236023 1".split(),
    np.float64,
)
MIDDLES = (np.rint(127 * NF4)[:-1] + np.rint(127 * NF4)[1:]) / 254
NF4 = (np.rint(127 * NF4) / 127).astype(np.float32)


def kept(x: Array, kind: str) -> Array:
    """float32 [..., n] -> what a cache of that kind keeps of it, float64."""
    x = np.asarray(x, np.float32)
    if kind in ("f32", "f16"):
        return x.astype(np.float16 if kind == "f16" else np.float32).astype(np.float64)
    if kind == "bf16":
        return bfloat(x).astype(np.float64)
    block = BLOCKS[kind]
    parts = [x[..., i : i + block] for i in range(0, x.shape[-1], block)]
    return np.concatenate([_block(part, kind) for part in parts], axis=-1)


def bfloat(x: Array) -> Array:
    """The nearest float32 of which only the upper 16 bits are set, ties to even."""
    bits = x.view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) & np.uint64(0xFFFF0000)
    return bits.astype(np.uint32).view(np.float32)


def asked(q: Array, kind: str) -> Array:
    """Queries float32 [..., n] as keys of that kind meet them, float64: integers of 16 bits and scales."""
    if kind not in BLOCKS:
        return q.astype(np.float64)
    block, limit = BLOCKS[kind], np.float32(127 * 256)
    out = np.zeros(q.shape)
    for i in range(0, q.shape[-1], block):
        x = np.asarray(q[..., i : i + block], np.float32)
        top = np.abs(x).max(axis=-1, keepdims=True)
        with np.errstate(divide="ignore", over="ignore"):
            inverse = np.where(top >= 1e-30, limit / top, np.float32(0))
        out[..., i : i + block] = np.rint(x * inverse) * (top.astype(np.float64) / limit)
    return out


def _block(x: Array, kind: str) -> Array:
    """A block of each row, float32 [..., up to 64] -> float64."""
    top, bottom = x.max(axis=-1, keepdims=True), x.min(axis=-1, keepdims=True)
    largest = np.where(top > -bottom, top, bottom)
    scale = {
        "q8_0": np.abs(largest) / np.float32(127),
        "q4_0": largest / np.float32(-8),
        "nf4": np.abs(largest),
    }
    d = scale[kind].astype(np.float16).astype(np.float32)
    with np.errstate(divide="ignore"):
        inverse = np.where(d == 0, np.float32(0), np.float32(1) / d)
    return d.astype(np.float64) * _code(x * inverse, kind)


def _code(x: Array, kind: str) -> Array:
    """Numbers divided by their scale -> the nearest that the kind has."""
    if kind == "nf4":
        return NF4[(x[..., None] > MIDDLES.astype(np.float32)).sum(axis=-1)].astype(np.float64)
    low, high = (-127, 127) if kind == "q8_0" else (-8, 7)
    return np.clip(np.rint(x), low, high).astype(np.float64)
