"""Steps that take each value by itself.  Buffers are padded to 16 floats, so there is no tail."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmgen.kernels.abi import arg, arg_f64, inline, run_field, step
from llmgen.kernels.functions import gelu, silu, tanh
from llmgen.kernels.norms import tokens_of
from llmgen.kernels.simd import load_f32, load_f32x16, splat, store_f32, store_f32x16

# Arguments of the steps, in order.  N: values of a token that this thread takes.
X, X_STRIDE, Y, Y_STRIDE, OUT, OUT_STRIDE, N, SPLIT, RUN, VALUE, COUNT = range(11)


def _binary(combine: Any) -> Any:
    def kernel(args: int, thread: int, n_threads: int) -> None:
        """out = combine(x, y); Y_STRIDE is 0 where y is one row for all tokens."""
        n = arg(args, N)
        first, last = tokens_of(args, arg(args, SPLIT), arg(args, RUN), thread, n_threads)
        for t in range(first, last):
            x = arg(args, X) + t * arg(args, X_STRIDE)
            y = arg(args, Y) + t * arg(args, Y_STRIDE)
            out = arg(args, OUT) + t * arg(args, OUT_STRIDE)
            for i in range(0, 4 * n, 64):
                store_f32x16(out + i, combine(load_f32x16(x + i), load_f32x16(y + i)))

    return step(kernel)


@inline
def _add(x, y):  # type: ignore[no-untyped-def]
    return x + y


@inline
def _silu_mul(x, y):  # type: ignore[no-untyped-def]
    return silu(x) * y


@inline
def _gelu_mul(x, y):  # type: ignore[no-untyped-def]
    return gelu(x) * y


add, silu_mul, gelu_mul = _binary(_add), _binary(_silu_mul), _binary(_gelu_mul)


@step
def copy(args: int, thread: int, n_threads: int) -> None:
    """out = x, exactly N values."""
    n = arg(args, N)
    whole = n // 16 * 16
    first, last = tokens_of(args, arg(args, SPLIT), arg(args, RUN), thread, n_threads)
    for t in range(first, last):
        x = arg(args, X) + t * arg(args, X_STRIDE)
        out = arg(args, OUT) + t * arg(args, OUT_STRIDE)
        for i in range(0, 4 * whole, 64):
            store_f32x16(out + i, load_f32x16(x + i))
        for i in range(4 * whole, 4 * n, 4):
            store_f32(out + i, load_f32(x + i))


@step
def softcap(args: int, thread: int, n_threads: int) -> None:
    """x = cap * tanh(x / cap) in place, for COUNT rows (Gemma 2, arXiv:2408.00118)."""
    n = arg(args, N)
    cap = np.float32(arg_f64(args, VALUE))
    inverse = np.float32(1.0) / cap
    for t in range(run_field(arg(args, RUN), arg(args, COUNT))):
        x = arg(args, X) + t * arg(args, X_STRIDE)
        for i in range(0, 4 * n, 64):
            store_f32x16(x + i, splat(cap) * tanh(load_f32x16(x + i) * splat(inverse)))


@step
def add_row(args: int, thread: int, n_threads: int) -> None:
    """x += y (one row) in place, for COUNT rows."""
    n = arg(args, N)
    for t in range(run_field(arg(args, RUN), arg(args, COUNT))):
        x = arg(args, X) + t * arg(args, X_STRIDE)
        y = arg(args, Y)
        for i in range(0, 4 * n, 64):
            store_f32x16(x + i, load_f32x16(x + i) + load_f32x16(y + i))
