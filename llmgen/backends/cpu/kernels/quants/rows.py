"""One row of a matrix as float32: the embedding of a token, or of its position."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmgen.backends.cpu.kernels.abi import (
    arg,
    arg_f64,
    control_field,
    step,
    tokens_of,
)
from llmgen.backends.cpu.kernels.arguments import Embed, places
from llmgen.backends.cpu.kernels.quants import TABLE
from llmgen.backends.cpu.kernels.quants.block import functions_of
from llmgen.backends.cpu.kernels.simd import load_f32, load_i64, store_f32

at = places(Embed)


def _make(dequantize: Any, block_bytes: int) -> Any:
    def embed(args: int, thread: int, n_threads: int) -> None:
        """out[token] = scale * weights[number of the token]; with ``split_tokens`` each thread takes its own tiles."""
        control = arg(args, at.control)
        numbers = control_field(control, arg(args, at.number))
        row_bytes = arg(args, at.row_bytes)
        blocks = arg(args, at.blocks)
        block = arg(args, at.block)
        n = arg(args, at.n)
        scale = np.float32(arg_f64(args, at.scale))
        first, last = tokens_of(control, arg(args, at.split_tokens), thread, n_threads)
        for t in range(first, last):
            p = arg(args, at.weights) + load_i64(numbers + 8 * t) * row_bytes
            out = arg(args, at.out) + t * arg(args, at.out_stride)
            for b in range(blocks):
                dequantize(p + b * block_bytes, out + 4 * b * block)
            if scale != np.float32(1.0):
                for i in range(n):
                    store_f32(out + 4 * i, load_f32(out + 4 * i) * scale)

    return step(embed)


def __getattr__(key: str) -> Any:
    """The kernel of a type, made when it is asked for."""
    return _make(functions_of(key).dequantize, TABLE[key].block_bytes)
