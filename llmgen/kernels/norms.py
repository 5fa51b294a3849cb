"""RMS norm and layer norm, over a token's whole width or over each of its heads."""

from __future__ import annotations

import numpy as np

from llmgen.kernels.abi import RUN_TOKENS, arg, arg_f64, inline, run_field, step
from llmgen.kernels.layout import TILE_TOKENS
from llmgen.kernels.simd import (
    fma,
    load_f32,
    load_f32x16,
    splat,
    store_f32,
    store_f32x16,
    sum_f32x16,
    zero_f32x16,
)

# Arguments of the steps, in order.
X, X_STRIDE, OUT, OUT_STRIDE, WEIGHT, WEIGHT_STRIDE, BIAS, N, FIRST, LAST, SPLIT, RUN, EPS = range(13)


@inline
def tokens_of(args, split, run, thread, n_threads):  # type: ignore[no-untyped-def]
    """The tokens [first, last) of this thread: all, or with ``split`` its own tiles of eight."""
    n = run_field(run, RUN_TOKENS)
    if split:
        tiles = (n + TILE_TOKENS - 1) // TILE_TOKENS
        return tiles * thread // n_threads * TILE_TOKENS, min(
            tiles * (thread + 1) // n_threads * TILE_TOKENS, n
        )
    return 0, n


@inline
def sum_of(x, n):  # type: ignore[no-untyped-def]
    total = zero_f32x16()
    whole = n // 16 * 16
    for i in range(0, whole, 16):
        total = total + load_f32x16(x + 4 * i)
    s = sum_f32x16(total)
    for i in range(whole, n):
        s += load_f32(x + 4 * i)
    return s


@inline
def sum_of_squares(x, n, mean):  # type: ignore[no-untyped-def]
    """sum of (x - mean)^2."""
    total = zero_f32x16()
    whole = n // 16 * 16
    for i in range(0, whole, 16):
        v = load_f32x16(x + 4 * i) - splat(mean)
        total = fma(v, v, total)
    s = sum_f32x16(total)
    for i in range(whole, n):
        v = load_f32(x + 4 * i) - mean
        s += v * v
    return s


@inline
def scaled(x, out, weight, bias, n, mean, scale):  # type: ignore[no-untyped-def]
    """out = (x - mean) * scale * weight + bias."""
    whole = n // 16 * 16
    for i in range(0, whole, 16):
        v = (load_f32x16(x + 4 * i) - splat(mean)) * splat(scale) * load_f32x16(weight + 4 * i)
        if bias:
            v = v + load_f32x16(bias + 4 * i)
        store_f32x16(out + 4 * i, v)
    for i in range(whole, n):
        v = (load_f32(x + 4 * i) - mean) * scale * load_f32(weight + 4 * i)
        if bias:
            v += load_f32(bias + 4 * i)
        store_f32(out + 4 * i, v)


@step
def rms_norm(args: int, thread: int, n_threads: int) -> None:
    """out = x / sqrt(mean(x^2) + eps) * weight, for heads FIRST..LAST of N values each (Zhang and Sennrich, 2019)."""
    n = arg(args, N)
    eps = np.float32(arg_f64(args, EPS))
    first, last = tokens_of(args, arg(args, SPLIT), arg(args, RUN), thread, n_threads)
    for t in range(first, last):
        for h in range(arg(args, FIRST), arg(args, LAST)):
            x = arg(args, X) + t * arg(args, X_STRIDE) + 4 * h * n
            out = arg(args, OUT) + t * arg(args, OUT_STRIDE) + 4 * h * n
            mean_square = sum_of_squares(x, n, np.float32(0.0)) / np.float32(n)
            scale = np.float32(1.0) / np.sqrt(mean_square + eps)
            scaled(x, out, arg(args, WEIGHT) + h * arg(args, WEIGHT_STRIDE), 0, n, np.float32(0.0), scale)


@step
def layer_norm(args: int, thread: int, n_threads: int) -> None:
    """out = (x - mean) / sqrt(var + eps) * weight + bias, for heads FIRST..LAST of N values each (Ba et al., 2016)."""
    n = arg(args, N)
    eps = np.float32(arg_f64(args, EPS))
    first, last = tokens_of(args, arg(args, SPLIT), arg(args, RUN), thread, n_threads)
    for t in range(first, last):
        for h in range(arg(args, FIRST), arg(args, LAST)):
            x = arg(args, X) + t * arg(args, X_STRIDE) + 4 * h * n
            out = arg(args, OUT) + t * arg(args, OUT_STRIDE) + 4 * h * n
            mean = sum_of(x, n) / np.float32(n)
            scale = np.float32(1.0) / np.sqrt(sum_of_squares(x, n, mean) / np.float32(n) + eps)
            weight = arg(args, WEIGHT) + h * arg(args, WEIGHT_STRIDE)
            scaled(x, out, weight, arg(args, BIAS), n, mean, scale)
