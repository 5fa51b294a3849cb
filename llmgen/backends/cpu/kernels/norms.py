"""RMS norm and layer norm, over a token's whole width or over each of its heads."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmgen.backends.cpu.kernels.abi import arg, arg_f64, inline, step, tokens_of
from llmgen.backends.cpu.kernels.arguments import Norm, places
from llmgen.backends.cpu.kernels.simd import (
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
    """Sum of the n floats at x."""
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
    """Sum of (x - mean)^2 over the n floats at x."""
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
    """out = (x - mean) * scale * weight + bias, n floats each; bias may be 0, for none."""
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


def _norm(centered: bool) -> Any:
    def norm(args: int, thread: int, n_threads: int) -> None:
        """Each head on its own; without centering, mean and bias are 0."""
        n = arg(args, at.n)
        eps = np.float32(arg_f64(args, at.eps))
        mean = np.float32(0.0)
        bias = 0
        first, last = tokens_of(arg(args, at.control), arg(args, at.split_tokens), thread, n_threads)
        for t in range(first, last):
            for h in range(arg(args, at.first), arg(args, at.last)):
                x = arg(args, at.x) + t * arg(args, at.x_stride) + 4 * h * n
                out = arg(args, at.out) + t * arg(args, at.out_stride) + 4 * h * n
                weight = arg(args, at.weight) + h * arg(args, at.weight_stride)
                if centered:
                    mean = sum_of(x, n) / np.float32(n)
                    bias = arg(args, at.bias)
                variance = sum_of_squares(x, n, mean) / np.float32(n)
                scaled(x, out, weight, bias, n, mean, np.float32(1.0) / np.sqrt(variance + eps))

    return step(norm)


rms_norm = _norm(centered=False)
"""x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, 2019)."""
layer_norm = _norm(centered=True)
"""(x - mean) / sqrt(var + eps) * weight + bias (Ba et al., 2016)."""
