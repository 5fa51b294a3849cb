"""Elementwise steps.  Buffers are padded to 16 floats, so there is no tail."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmgen.backends.cpu.kernels import functions
from llmgen.backends.cpu.kernels.abi import arg, arg_f64, control_field, inline, step, tokens_of
from llmgen.backends.cpu.kernels.arguments import AddRow, Binary, Copy, Softcap, Unary, places
from llmgen.backends.cpu.kernels.functions import tanh
from llmgen.backends.cpu.kernels.simd import load_f32, load_f32x16, splat, store_f32, store_f32x16

at = places(Binary)
copy_at, unary_at, row_at, cap_at = places(Copy), places(Unary), places(AddRow), places(Softcap)


@inline
def copy_floats(x, out, n):  # type: ignore[no-untyped-def]
    """out = x, n floats and no more."""
    whole = n // 16 * 16
    for i in range(0, 4 * whole, 64):
        store_f32x16(out + i, load_f32x16(x + i))
    for i in range(4 * whole, 4 * n, 4):
        store_f32(out + i, load_f32(x + i))


def _binary(combine: Any) -> Any:
    def kernel(args: int, thread: int, n_threads: int) -> None:
        """out = combine(x, y)."""
        n = arg(args, at.n)
        first, last = tokens_of(arg(args, at.control), arg(args, at.split_tokens), thread, n_threads)
        for t in range(first, last):
            x = arg(args, at.x) + t * arg(args, at.x_stride)
            y = arg(args, at.y) + t * arg(args, at.y_stride)
            out = arg(args, at.out) + t * arg(args, at.out_stride)
            for i in range(0, 4 * n, 64):
                store_f32x16(out + i, combine(load_f32x16(x + i), load_f32x16(y + i)))

    return step(kernel)


@inline
def _add(x, y):  # type: ignore[no-untyped-def]
    return x + y


@inline
def _silu_mul(x, y):  # type: ignore[no-untyped-def]
    return functions.silu(x) * y


@inline
def _gelu_mul(x, y):  # type: ignore[no-untyped-def]
    return functions.gelu(x) * y


add, silu_mul, gelu_mul = _binary(_add), _binary(_silu_mul), _binary(_gelu_mul)


def _unary(function: Any) -> Any:
    def kernel(args: int, thread: int, n_threads: int) -> None:
        """out = function(x)."""
        n = arg(args, unary_at.n)
        first, last = tokens_of(
            arg(args, unary_at.control), arg(args, unary_at.split_tokens), thread, n_threads
        )
        for t in range(first, last):
            x = arg(args, unary_at.x) + t * arg(args, unary_at.x_stride)
            out = arg(args, unary_at.out) + t * arg(args, unary_at.out_stride)
            for i in range(0, 4 * n, 64):
                store_f32x16(out + i, function(load_f32x16(x + i)))

    return step(kernel)


silu, gelu = _unary(functions.silu), _unary(functions.gelu)


@step
def copy(args: int, thread: int, n_threads: int) -> None:
    """out = x, exactly n values."""
    n = arg(args, copy_at.n)
    first, last = tokens_of(arg(args, copy_at.control), arg(args, copy_at.split_tokens), thread, n_threads)
    for t in range(first, last):
        x = arg(args, copy_at.x) + t * arg(args, copy_at.x_stride)
        out = arg(args, copy_at.out) + t * arg(args, copy_at.out_stride)
        copy_floats(x, out, n)


@step
def softcap(args: int, thread: int, n_threads: int) -> None:
    """x = cap * tanh(x / cap) in place, for as many rows as ``count`` says (Gemma 2, arXiv:2408.00118)."""
    n = arg(args, cap_at.n)
    cap = np.float32(arg_f64(args, cap_at.cap))
    inverse = np.float32(1.0) / cap
    for t in range(control_field(arg(args, cap_at.control), arg(args, cap_at.count))):
        x = arg(args, cap_at.x) + t * arg(args, cap_at.x_stride)
        for i in range(0, 4 * n, 64):
            store_f32x16(x + i, splat(cap) * tanh(load_f32x16(x + i) * splat(inverse)))


@step
def add_row(args: int, thread: int, n_threads: int) -> None:
    """x += y (one row) in place, for as many rows as ``count`` says."""
    n = arg(args, row_at.n)
    for t in range(control_field(arg(args, row_at.control), arg(args, row_at.count))):
        x = arg(args, row_at.x) + t * arg(args, row_at.x_stride)
        y = arg(args, row_at.y)
        for i in range(0, 4 * n, 64):
            store_f32x16(x + i, load_f32x16(x + i) + load_f32x16(y + i))
