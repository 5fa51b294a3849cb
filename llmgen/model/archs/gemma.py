"""Gemma (arXiv:2403.08295), Gemma 2 (arXiv:2408.00118), Gemma 3 (arXiv:2503.19786)."""

from __future__ import annotations

import math

from llmgen.backends.cpu.recorder import Recorder
from llmgen.model.archs.blocks import (
    attention,
    embedding,
    feed_forward,
    normed_qkv,
    output_matrix,
    qkv,
    rope_table,
)
from llmgen.model.config import ModelConfig, RopeScaling
from llmgen.model.rope import RopeTable
from llmgen.model.weights import Weights


def gemma(b: Recorder, w: Weights, c: ModelConfig) -> None:
    """Llama with scaled embeddings and gelu; always tied."""
    table = rope_table(c, neox=True)
    x = b.embed(embedding(w, c), scale=math.sqrt(c.n_embd))
    for layer in range(c.n_layers):
        h = b.rms_norm(x, w.vector(f"blk.{layer}.attn_norm", c.n_embd))
        q, k, v = qkv(b, w, c, h, layer)
        x = b.add(x, attention(b, w, c, q, k, v, layer, table))
        h = b.rms_norm(x, w.vector(f"blk.{layer}.ffn_norm", c.n_embd))
        x = b.add(x, feed_forward(b, w, c, h, layer, "gelu"))
    b.logits(b.rms_norm(x, w.vector("output_norm", c.n_embd)), embedding(w, c))


def gemma2(b: Recorder, w: Weights, c: ModelConfig) -> None:
    """Norms before and after each block, soft caps, every second layer with a sliding window; always tied."""
    # the 27B model alone divides by the width of a head as if heads filled the embedding
    scale = (c.n_embd // c.n_heads) ** -0.5 if c.n_layers == 46 else None
    local = RopeTable(c.n_ctx, c.n_rot, c.rope_base_local, True, c.rope_scaling)
    _sandwich(b, w, c, local, scale, normed_heads=False)


def gemma3(b: Recorder, w: Weights, c: ModelConfig) -> None:
    """Gemma 2 with normed heads instead of the attention's cap; five of six layers have the window."""
    scale = (c.n_embd // c.n_heads) ** -0.5 if c.n_layers == 62 else None
    # the window's layers are not stretched, but what the file puts on cosines and sines holds for all
    plain = RopeScaling(attention_factor=c.rope_scaling.attention_factor)
    local = RopeTable(c.n_ctx, c.n_rot, c.rope_base_local, True, plain)
    _sandwich(b, w, c, local, scale, normed_heads=True)


def _sandwich(
    b: Recorder, w: Weights, c: ModelConfig, local: RopeTable, scale: float | None, normed_heads: bool
) -> None:
    projections = normed_qkv if normed_heads else qkv
    table = rope_table(c, neox=True)
    x = b.embed(embedding(w, c), scale=math.sqrt(c.n_embd))
    for layer in range(c.n_layers):
        name = f"blk.{layer}."
        h = b.rms_norm(x, w.vector(name + "attn_norm", c.n_embd))
        q, k, v = projections(b, w, c, h, layer)
        a = attention(b, w, c, q, k, v, layer, local if c.is_local(layer) else table, scale)
        x = b.add(x, b.rms_norm(a, w.vector(name + "post_attention_norm", c.n_embd)))
        h = b.rms_norm(x, w.vector(name + "ffn_norm", c.n_embd))
        f = feed_forward(b, w, c, h, layer, "gelu")
        x = b.add(x, b.rms_norm(f, w.vector(name + "post_ffw_norm", c.n_embd)))
    output = output_matrix(w, c) if normed_heads else embedding(w, c)
    b.logits(b.rms_norm(x, w.vector("output_norm", c.n_embd)), output, cap=c.final_cap)
