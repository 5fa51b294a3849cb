"""One row of a matrix as float32: the embedding of a token."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmgen.backends.cpu.kernels.abi import (
    RUN_IDS,
    arg,
    arg_f64,
    run_field,
    step,
    tokens_of,
)
from llmgen.backends.cpu.kernels.arguments import Embed, places
from llmgen.backends.cpu.kernels.quants import floats, kquants, legacy
from llmgen.backends.cpu.kernels.simd import load_f32, load_i64, store_f32

at = places(Embed)


def _make(quant: Any) -> Any:
    dequantize, block_bytes = quant.dequantize, quant.nbytes

    def embed(args: int, thread: int, n_threads: int) -> None:
        """out[token] = scale * weights[id of the token]; with ``split`` each thread takes its own tiles of tokens."""
        run = arg(args, at.run)
        row_bytes = arg(args, at.row_bytes)
        blocks = arg(args, at.blocks)
        block = arg(args, at.block)
        n = arg(args, at.n)
        scale = np.float32(arg_f64(args, at.scale))
        first, last = tokens_of(run, arg(args, at.split), thread, n_threads)
        for t in range(first, last):
            p = arg(args, at.weights) + load_i64(run_field(run, RUN_IDS) + 8 * t) * row_bytes
            out = arg(args, at.out) + t * arg(args, at.out_stride)
            for b in range(blocks):
                dequantize(p + b * block_bytes, out + 4 * b * block)
            if scale != np.float32(1.0):
                for i in range(n):
                    store_f32(out + 4 * i, load_f32(out + 4 * i) * scale)

    return step(embed)


f32, f16, bf16 = _make(floats.F32), _make(floats.F16), _make(floats.BF16)
q4_0, q4_1, q5_0 = _make(legacy.Q4_0), _make(legacy.Q4_1), _make(legacy.Q5_0)
q5_1, q8_0 = _make(legacy.Q5_1), _make(legacy.Q8_0)
q4_k, q5_k, q6_k = _make(kquants.Q4_K), _make(kquants.Q5_K), _make(kquants.Q6_K)
