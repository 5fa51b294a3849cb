"""Residuals of several streams (hyper-connections): sums of a token's parts, and doubly stochastic matrices."""

from __future__ import annotations

import numpy as np

from llmgen.backends.cpu.kernels import functions
from llmgen.backends.cpu.kernels.abi import arg, arg_f64, inline, step, tokens_of
from llmgen.backends.cpu.kernels.arguments import places
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
from llmgen.backends.cpu.kernels.stream_arguments import Blend, RootProducts, Sinkhorn

at, matrix_at, root_at = places(Blend), places(Sinkhorn), places(RootProducts)


@inline
def weighted_sum(x, weights, out, n_in, n_out, n):  # type: ignore[no-untyped-def]
    """out = the sum over i of weights[i * n_out] * (the i-th n floats at x)."""
    whole = n // 16 * 16
    for c in range(0, whole, 16):
        total = load_f32x16(x + 4 * c) * splat(load_f32(weights))
        for i in range(1, n_in):
            factor = splat(load_f32(weights + 4 * i * n_out))
            total = fma(load_f32x16(x + 4 * (i * n + c)), factor, total)
        store_f32x16(out + 4 * c, total)
    for c in range(whole, n):
        one = load_f32(x + 4 * c) * load_f32(weights)
        for i in range(1, n_in):
            one += load_f32(x + 4 * (i * n + c)) * load_f32(weights + 4 * i * n_out)
        store_f32(out + 4 * c, one)


@step
def blend(args: int, thread: int, n_threads: int) -> None:
    """Part j of out = the sum over i of weights[i][j] * part i of x."""
    n_in, n_out, n = arg(args, at.n_in), arg(args, at.n_out), arg(args, at.n)
    first, last = tokens_of(arg(args, at.control), arg(args, at.split_tokens), thread, n_threads)
    for t in range(first, last):
        x = arg(args, at.x) + t * arg(args, at.x_stride)
        weights = arg(args, at.weights) + t * arg(args, at.weights_stride)
        out = arg(args, at.out) + t * arg(args, at.out_stride)
        for j in range(n_out):
            weighted_sum(x, weights + 4 * j, out + 4 * j * n, n_in, n_out, n)


@inline
def product(x, y, n):  # type: ignore[no-untyped-def]
    """x . y of n floats."""
    total = zero_f32x16()
    whole = n // 16 * 16
    for i in range(0, 4 * whole, 64):
        total = fma(load_f32x16(x + i), load_f32x16(y + i), total)
    s = sum_f32x16(total)
    for i in range(4 * whole, 4 * n, 4):
        s += load_f32(x + i) * load_f32(y + i)
    return s


@step
def root_products(args: int, thread: int, n_threads: int) -> None:
    """sign(p) sqrt(max(|p|, least)) of p = scale * (x . y), head by head; a NaN stays one."""
    n, scale = arg(args, root_at.n), np.float32(arg_f64(args, root_at.scale))
    least = np.float32(arg_f64(args, root_at.least))
    first, last = tokens_of(arg(args, root_at.control), arg(args, root_at.split_tokens), thread, n_threads)
    for t in range(first, last):
        for h in range(arg(args, root_at.heads)):
            x = arg(args, root_at.x) + t * arg(args, root_at.x_stride) + 4 * h * n
            y = arg(args, root_at.y) + t * arg(args, root_at.y_stride) + 4 * h * n
            p = product(x, y, n) * scale
            size = abs(p)
            root = np.sqrt(least if size < least else size)
            if p == np.float32(0.0):
                root = np.float32(0.0)
            out = arg(args, root_at.out) + t * arg(args, root_at.out_stride) + 4 * h
            store_f32(out, np.float32(0.0) - root if p < np.float32(0.0) else root)


@inline
def softmax_rows(x, out, size):  # type: ignore[no-untyped-def]
    """out = softmax of each of ``size`` rows of ``size`` floats; both have room for whole vectors."""
    for i in range(size):
        row = 4 * i * size
        top = load_f32(x + row)
        for j in range(1, size):
            value = load_f32(x + row + 4 * j)
            top = value if value > top or value != value else top
        for j in range(size):
            store_f32(out + row + 4 * j, load_f32(x + row + 4 * j) - top)
    for i in range(0, size * size, 16):
        store_f32x16(out + 4 * i, functions.exp(load_f32x16(out + 4 * i)))
    for i in range(size):
        divide(out + 4 * i * size, size, 4, np.float32(0.0))


@inline
def divide(x, n, stride, eps):  # type: ignore[no-untyped-def]
    """n floats that lie ``stride`` bytes apart, divided by their sum plus eps."""
    total = np.float32(0.0)
    for i in range(n):
        total += load_f32(x + i * stride)
    total += eps
    for i in range(n):
        store_f32(x + i * stride, load_f32(x + i * stride) / total)


@step
def sinkhorn(args: int, thread: int, n_threads: int) -> None:
    """Columns and rows in turn divided by their sums, as ``model.ops.Ops.sinkhorn`` says."""
    size, eps = arg(args, matrix_at.size), np.float32(arg_f64(args, matrix_at.eps))
    first, last = tokens_of(
        arg(args, matrix_at.control), arg(args, matrix_at.split_tokens), thread, n_threads
    )
    for t in range(first, last):
        out = arg(args, matrix_at.out) + t * arg(args, matrix_at.out_stride)
        softmax_rows(arg(args, matrix_at.x) + t * arg(args, matrix_at.x_stride), out, size)
        for i in range(size * size):
            store_f32(out + 4 * i, load_f32(out + 4 * i) + eps)
        for i in range(arg(args, matrix_at.rounds)):
            if i:
                for row in range(size):
                    divide(out + 4 * row * size, size, 4, eps)
            for column in range(size):
                divide(out + 4 * column, size, 4 * size, eps)
