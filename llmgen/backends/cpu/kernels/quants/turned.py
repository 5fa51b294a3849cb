"""A matrix times tokens the other way around: x @ w instead of x @ w.T.

Latent attention takes a projection of its cache over to the queries, whose rows then are what is
summed up.  A thread dequantizes its blocks of all rows once, for all tokens; each sum runs over
the rows in order, so it depends neither on the other tokens nor on the threads.
"""

from __future__ import annotations

from typing import Any

from llmgen.backends.cpu.kernels.abi import CONTROL_TOKENS, arg, control_field, step
from llmgen.backends.cpu.kernels.arguments import Turned, places
from llmgen.backends.cpu.kernels.pointwise import copy_floats
from llmgen.backends.cpu.kernels.quants import TABLE
from llmgen.backends.cpu.kernels.quants.block import functions_of
from llmgen.backends.cpu.kernels.simd import (
    fma,
    load_f32,
    load_f32x16,
    splat,
    store_f32x16,
    zero_f32x16,
)

at = places(Turned)


def _make(dequantize: Any, block_bytes: int) -> Any:
    def turned(args: int, thread: int, n_threads: int) -> None:
        """out[token] = the sum over rows of x[token][row] * weights[row], for this thread's blocks of a row."""
        row_bytes, rows, block = arg(args, at.row_bytes), arg(args, at.rows), arg(args, at.block)
        first, last = arg(args, at.first), arg(args, at.last)
        n = (last - first) * block
        if n <= 0:
            return
        scratch = arg(args, at.scratch)
        stride = (n + 15) // 16 * 64
        result = scratch + rows * stride
        for row in range(rows):
            p = arg(args, at.weights) + row * row_bytes
            for b in range(first, last):
                dequantize(p + b * block_bytes, scratch + row * stride + 4 * (b - first) * block)
        for t in range(control_field(arg(args, at.control), CONTROL_TOKENS)):
            x = arg(args, at.x) + t * arg(args, at.x_stride)
            for i in range(0, stride, 64):
                total = zero_f32x16()
                p = scratch + i
                for row in range(rows):
                    total = fma(load_f32x16(p), splat(load_f32(x + 4 * row)), total)
                    p += stride
                store_f32x16(result + i, total)
            out = arg(args, at.out) + t * arg(args, at.out_stride) + 4 * first * block
            copy_floats(result, out, n)

    return step(turned)


def __getattr__(key: str) -> Any:
    """The kernel of a type, made when it is asked for."""
    return _make(functions_of(key).dequantize, TABLE[key].block_bytes)
