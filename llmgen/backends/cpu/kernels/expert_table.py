"""Mixtures of experts: experts that a table names for each token of the vocabulary (DeepSeek V4)."""

from __future__ import annotations

import numpy as np

from llmgen.backends.cpu.kernels.abi import arg, arg_f64, control_field, step, tokens_of
from llmgen.backends.cpu.kernels.arguments import places
from llmgen.backends.cpu.kernels.expert_choice import weigh
from llmgen.backends.cpu.kernels.functions import softplus
from llmgen.backends.cpu.kernels.simd import (
    load_f32,
    load_f32x16,
    load_i64,
    store_f32,
    store_f32x16,
    store_i64,
)
from llmgen.backends.cpu.kernels.table_arguments import LookUp

at = places(LookUp)


@step
def look_up(args: int, thread: int, n_threads: int) -> None:
    """Each token's experts in the order of the table; their scores are the roots of softplus of the logits."""
    control, n, n_used = arg(args, at.control), arg(args, at.n_experts), arg(args, at.n_used)
    tokens, scores = control_field(control, arg(args, at.number)), arg(args, at.scratch)
    first, last = tokens_of(control, arg(args, at.split_tokens), thread, n_threads)
    for t in range(first, last):
        logits = arg(args, at.logits) + t * arg(args, at.logits_stride)
        ids = arg(args, at.ids) + t * arg(args, at.ids_stride)
        row = arg(args, at.table) + 8 * n_used * load_i64(tokens + 8 * t)
        for k in range(n_used):
            store_i64(ids + 8 * k, load_i64(row + 8 * k))
        for i in range(0, n, 16):
            store_f32x16(scores + 4 * i, softplus(load_f32x16(logits + 4 * i)))
        for i in range(n):
            store_f32(scores + 4 * i, np.sqrt(load_f32(scores + 4 * i)))
        scale = np.float32(arg_f64(args, at.scale))
        weights = arg(args, at.weights) + t * arg(args, at.weights_stride)
        weigh(scores, ids, weights, n_used, arg(args, at.normalize), scale)
