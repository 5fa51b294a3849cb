"""Phi-3 (arXiv:2404.14219)."""

from __future__ import annotations

from llmgen.backends.cpu.recorder import Recorder
from llmgen.model.archs.blocks import (
    attention,
    embedding,
    longrope_factors,
    output_matrix,
    qkv,
    rope_table,
)
from llmgen.model.config import ModelConfig
from llmgen.model.weights import Weights


def phi3(b: Recorder, w: Weights, c: ModelConfig) -> None:
    """Llama with rotary positions on halves; gate and up projections are one matrix, gate first."""
    table = rope_table(c, neox=True, factors=longrope_factors(w, c))
    x = b.embed(embedding(w, c))
    for layer in range(c.n_layers):
        name = f"blk.{layer}."
        h = b.rms_norm(x, w.vector(name + "attn_norm", c.n_embd))
        q, k, v = qkv(b, w, c, h, layer)
        x = b.add(x, attention(b, w, c, q, k, v, layer, table))
        h = b.rms_norm(x, w.vector(name + "ffn_norm", c.n_embd))
        both = w.matrix(name + "ffn_up", 2 * c.n_ff, c.n_embd)
        hidden = b.gated(b.linear(h, both.rows(0, c.n_ff)), b.linear(h, both.rows(c.n_ff, c.n_ff)), "silu")
        x = b.add(x, b.linear(hidden, w.matrix(name + "ffn_down", c.n_embd, c.n_ff)))
    b.logits(b.rms_norm(x, w.vector("output_norm", c.n_embd)), output_matrix(w, c))
