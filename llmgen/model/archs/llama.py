"""Llama and its close relatives: Mistral 3, Qwen 2, Qwen 3.

Llama: arXiv:2302.13971; Qwen2: arXiv:2407.10671; Qwen3: arXiv:2505.09388.
"""

from __future__ import annotations

import numpy as np

from llmgen.backends.cpu.recorder import Recorder
from llmgen.model.archs.blocks import (
    attention,
    embedding,
    feed_forward,
    longrope_factors,
    normed_qkv,
    output_matrix,
    qkv,
    rope_factors,
    rope_table,
)
from llmgen.model.config import ModelConfig
from llmgen.model.weights import Weights


def llama(b: Recorder, w: Weights, c: ModelConfig) -> None:
    """Pre-norm transformer with rotary positions on neighbouring pairs and a gated feed-forward."""
    longrope = c.rope_scaling.kind == "longrope"
    factors = longrope_factors(w, c) if longrope else rope_factors(w, c, "rope_freqs")
    table = rope_table(c, neox=False, factors=factors)
    token_scale = w.keep(_temperature(c)) if c.temperature_scale else 0
    x = b.embed(embedding(w, c))
    for layer in range(c.n_layers):
        h = b.rms_norm(x, w.vector(f"blk.{layer}.attn_norm", c.n_embd))
        q, k, v = qkv(b, w, c, h, layer)
        x = b.add(x, attention(b, w, c, q, k, v, layer, table, output_bias=True, token_scale=token_scale))
        h = b.rms_norm(x, w.vector(f"blk.{layer}.ffn_norm", c.n_embd))
        x = b.add(x, feed_forward(b, w, c, h, layer, biases=True))
    b.logits(b.rms_norm(x, w.vector("output_norm", c.n_embd)), output_matrix(w, c))


def _temperature(c: ModelConfig) -> np.ndarray:
    """Mistral 3: q grows with the logarithm of how often the original context is passed; float32 [n_ctx]."""
    passed = np.arange(c.n_ctx) // max(c.rope_scaling.original_context, 1)
    return (1.0 + c.temperature_scale * np.log(passed + 1.0)).astype(np.float32)


mistral3 = llama


def qwen2(b: Recorder, w: Weights, c: ModelConfig) -> None:
    """Llama with rotary positions on halves and biases on q, k and v."""
    _qwen(b, w, c, normed_heads=False)


def qwen3(b: Recorder, w: Weights, c: ModelConfig) -> None:
    """Qwen 2 with an RMS norm over each head of q and k."""
    w.skip("cls.output")  # the head of a reranker
    _qwen(b, w, c, normed_heads=True)


def _qwen(b: Recorder, w: Weights, c: ModelConfig, normed_heads: bool) -> None:
    projections = normed_qkv if normed_heads else qkv
    table = rope_table(c, neox=True)
    x = b.embed(embedding(w, c))
    for layer in range(c.n_layers):
        name = f"blk.{layer}."
        h = b.rms_norm(x, w.vector(name + "attn_norm", c.n_embd))
        q, k, v = projections(b, w, c, h, layer)
        x = b.add(x, attention(b, w, c, q, k, v, layer, table))
        h = b.rms_norm(x, w.vector(name + "ffn_norm", c.n_embd))
        x = b.add(x, feed_forward(b, w, c, h, layer))
    bias = None if normed_heads else w.optional_vector("output.bias", c.vocab_size)
    b.logits(b.rms_norm(x, w.vector("output_norm", c.n_embd)), output_matrix(w, c), bias)
