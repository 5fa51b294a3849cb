"""RMS norm and layer norm, over a token's whole width or over each of its heads."""

from __future__ import annotations

import numpy as np

from llmgen.kernels.abi import arg, arg_f64, inline, step, tokens_of
from llmgen.kernels.arguments import Norm, places
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

at = places(Norm)


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
    """out = x / sqrt(mean(x^2) + eps) * weight, for heads first..last of n values each (Zhang and Sennrich, 2019)."""
    n = arg(args, at.n)
    eps = np.float32(arg_f64(args, at.eps))
    first, last = tokens_of(arg(args, at.run), arg(args, at.split), thread, n_threads)
    for t in range(first, last):
        for h in range(arg(args, at.first), arg(args, at.last)):
            x = arg(args, at.x) + t * arg(args, at.x_stride) + 4 * h * n
            out = arg(args, at.out) + t * arg(args, at.out_stride) + 4 * h * n
            mean_square = sum_of_squares(x, n, np.float32(0.0)) / np.float32(n)
            scale = np.float32(1.0) / np.sqrt(mean_square + eps)
            scaled(
                x, out, arg(args, at.weight) + h * arg(args, at.weight_stride), 0, n, np.float32(0.0), scale
            )


@step
def layer_norm(args: int, thread: int, n_threads: int) -> None:
    """out = (x - mean) / sqrt(var + eps) * weight + bias, for heads first..last of n values each (Ba et al., 2016)."""
    n = arg(args, at.n)
    eps = np.float32(arg_f64(args, at.eps))
    first, last = tokens_of(arg(args, at.run), arg(args, at.split), thread, n_threads)
    for t in range(first, last):
        for h in range(arg(args, at.first), arg(args, at.last)):
            x = arg(args, at.x) + t * arg(args, at.x_stride) + 4 * h * n
            out = arg(args, at.out) + t * arg(args, at.out_stride) + 4 * h * n
            mean = sum_of(x, n) / np.float32(n)
            scale = np.float32(1.0) / np.sqrt(sum_of_squares(x, n, mean) / np.float32(n) + eps)
            weight = arg(args, at.weight) + h * arg(args, at.weight_stride)
            scaled(x, out, weight, arg(args, at.bias), n, mean, scale)
