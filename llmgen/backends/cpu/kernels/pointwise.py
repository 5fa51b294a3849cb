"""Elementwise steps.  Buffers are padded to 16 floats, so there is no tail."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmgen.backends.cpu.kernels import functions, simd
from llmgen.backends.cpu.kernels.abi import arg, arg_f64, control_field, inline, step, tokens_of
from llmgen.backends.cpu.kernels.arguments import (
    AddRow,
    Binary,
    Copy,
    HeadPart,
    PerHead,
    Softcap,
    Unary,
    UnaryWith,
    places,
)
from llmgen.backends.cpu.kernels.simd import (
    at_least,
    first_lane,
    load_f32,
    load_f32x16,
    splat,
    store_f32,
    store_f32x16,
    zero_f32x16,
)

at = places(Binary)
copy_at, unary_at, row_at, cap_at = places(Copy), places(Unary), places(AddRow), places(Softcap)
with_at, head_at, part_at = places(UnaryWith), places(PerHead), places(HeadPart)


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


@inline
def _mul(x, y):  # type: ignore[no-untyped-def]
    return x * y


@inline
def _sigmoid_mul(x, y):  # type: ignore[no-untyped-def]
    return functions.sigmoid(x) * y


@inline
def _relu_mul(x, y):  # type: ignore[no-untyped-def]
    return functions.relu(x) * y


@inline
def _gelu_erf_mul(x, y):  # type: ignore[no-untyped-def]
    return functions.gelu_erf(x) * y


@inline
def _gelu_quick_mul(x, y):  # type: ignore[no-untyped-def]
    return functions.gelu_quick(x) * y


@inline
def _swiglu_oai_mul(x, y):  # type: ignore[no-untyped-def]
    return functions.swiglu_oai(x, y)


add, mul = _binary(_add), _binary(_mul)
silu_mul, gelu_mul, sigmoid_mul = _binary(_silu_mul), _binary(_gelu_mul), _binary(_sigmoid_mul)
relu_mul, gelu_erf_mul, gelu_quick_mul = _binary(_relu_mul), _binary(_gelu_erf_mul), _binary(_gelu_quick_mul)
swiglu_oai_mul = _binary(_swiglu_oai_mul)


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


silu, gelu, sigmoid = _unary(functions.silu), _unary(functions.gelu), _unary(functions.sigmoid)
gelu_erf, gelu_quick = _unary(functions.gelu_erf), _unary(functions.gelu_quick)
relu, relu_squared = _unary(functions.relu), _unary(functions.relu_squared)
softplus, exp, tanh = _unary(functions.softplus), _unary(functions.exp), _unary(functions.tanh)


def _unary_with(function: Any) -> Any:
    def kernel(args: int, thread: int, n_threads: int) -> None:
        """out = function(x, parameter)."""
        n = arg(args, with_at.n)
        parameter = splat(np.float32(arg_f64(args, with_at.parameter)))
        first, last = tokens_of(
            arg(args, with_at.control), arg(args, with_at.split_tokens), thread, n_threads
        )
        for t in range(first, last):
            x = arg(args, with_at.x) + t * arg(args, with_at.x_stride)
            out = arg(args, with_at.out) + t * arg(args, with_at.out_stride)
            for i in range(0, 4 * n, 64):
                store_f32x16(out + i, function(load_f32x16(x + i), parameter))

    return step(kernel)


@inline
def _at_most(x, limit):  # type: ignore[no-untyped-def]
    return simd.at_most(x, limit)


@inline
def _clamp(x, limit):  # type: ignore[no-untyped-def]
    return simd.at_most(at_least(x, zero_f32x16() - limit), limit)


scale, clamp, at_most = _unary_with(_mul), _unary_with(_clamp), _unary_with(_at_most)


@inline
def _gated_heads(function, args, thread, n_threads):  # type: ignore[no-untyped-def]
    n = arg(args, head_at.head_dim)
    whole = n // 16 * 16
    first, last = tokens_of(arg(args, head_at.control), arg(args, head_at.split_tokens), thread, n_threads)
    for t in range(first, last):
        gates = arg(args, head_at.gate) + t * arg(args, head_at.gate_stride)
        for h in range(arg(args, head_at.first), arg(args, head_at.last)):
            gate = first_lane(function(splat(load_f32(gates + 4 * h))))
            x = arg(args, head_at.x) + t * arg(args, head_at.x_stride) + 4 * h * n
            out = arg(args, head_at.out) + t * arg(args, head_at.out_stride) + 4 * h * n
            for i in range(0, 4 * whole, 64):
                store_f32x16(out + i, load_f32x16(x + i) * splat(gate))
            for i in range(4 * whole, 4 * n, 4):
                store_f32(out + i, load_f32(x + i) * gate)


@step
def gate_heads(args: int, thread: int, n_threads: int) -> None:
    """out = x, each head times the sigmoid of its gate."""
    _gated_heads(functions.sigmoid, args, thread, n_threads)


@step
def gate_heads_softplus(args: int, thread: int, n_threads: int) -> None:
    """out = x, each head times the softplus of its gate."""
    _gated_heads(functions.softplus, args, thread, n_threads)


@step
def head_part(args: int, thread: int, n_threads: int) -> None:
    """out = some neighbouring values of each head of x."""
    n, head_dim = arg(args, part_at.n), arg(args, part_at.head_dim)
    first, last = tokens_of(arg(args, part_at.control), arg(args, part_at.split_tokens), thread, n_threads)
    for t in range(first, last):
        x = arg(args, part_at.x) + t * arg(args, part_at.x_stride) + 4 * arg(args, part_at.start)
        out = arg(args, part_at.out) + t * arg(args, part_at.out_stride)
        for h in range(arg(args, part_at.first), arg(args, part_at.last)):
            copy_floats(x + 4 * h * head_dim, out + 4 * h * n, n)


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
            store_f32x16(x + i, splat(cap) * functions.tanh(load_f32x16(x + i) * splat(inverse)))


@step
def add_row(args: int, thread: int, n_threads: int) -> None:
    """x += y (one row) in place, for as many rows as ``count`` says."""
    n = arg(args, row_at.n)
    for t in range(control_field(arg(args, row_at.control), arg(args, row_at.count))):
        x = arg(args, row_at.x) + t * arg(args, row_at.x_stride)
        y = arg(args, row_at.y)
        for i in range(0, 4 * n, 64):
            store_f32x16(x + i, load_f32x16(x + i) + load_f32x16(y + i))
