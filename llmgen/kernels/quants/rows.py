"""One row of a matrix as float32: the embedding of a token."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmgen.kernels.abi import (
    RUN_IDS,
    RUN_TOKENS,
    arg,
    arg_f64,
    run_field,
    step,
)
from llmgen.kernels.quants import floats, kquants, legacy
from llmgen.kernels.simd import load_f32, load_i64, store_f32

# Arguments of the step, in order.
WEIGHTS, ROW_BYTES, BLOCKS, BLOCK, OUT, OUT_STRIDE, N, SCALE, SPLIT, RUN = range(10)


def _make(quant: Any) -> Any:
    dequantize, block_bytes = quant.dequantize, quant.nbytes

    def embed(args: int, thread: int, n_threads: int) -> None:
        """out[token] = SCALE * weights[id of the token]; with SPLIT each thread takes its own tiles of tokens."""
        run = arg(args, RUN)
        row_bytes = arg(args, ROW_BYTES)
        blocks = arg(args, BLOCKS)
        block = arg(args, BLOCK)
        n = arg(args, N)
        scale = np.float32(arg_f64(args, SCALE))
        tokens = run_field(run, RUN_TOKENS)
        first, last = 0, tokens
        if arg(args, SPLIT):
            tiles = (tokens + 7) // 8
            first, last = tiles * thread // n_threads * 8, min(tiles * (thread + 1) // n_threads * 8, tokens)
        for t in range(first, last):
            p = arg(args, WEIGHTS) + load_i64(run_field(run, RUN_IDS) + 8 * t) * row_bytes
            out = arg(args, OUT) + t * arg(args, OUT_STRIDE)
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
