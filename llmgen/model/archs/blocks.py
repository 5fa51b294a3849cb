"""What most transformers share: projections, positions, feed-forward, the output matrix."""

from __future__ import annotations

import numpy as np

from llmgen.backends.cpu.plan import Value
from llmgen.backends.cpu.recorder import Recorder
from llmgen.model.config import ModelConfig
from llmgen.model.rope import RopeTable
from llmgen.model.weights import Matrix, Vector, Weights


def embedding(w: Weights, c: ModelConfig) -> Matrix:
    """token_embd [vocab_size, n_embd]."""
    return w.matrix("token_embd", c.vocab_size, c.n_embd)


def output_matrix(w: Weights, c: ModelConfig) -> Matrix:
    """output [vocab_size, n_embd]; models without it use the embedding."""
    return w.matrix("output", c.vocab_size, c.n_embd) if w.has("output") else embedding(w, c)


def qkv(b: Recorder, w: Weights, c: ModelConfig, x: Value, layer: int) -> tuple[Value, Value, Value]:
    """Queries [n_heads * head_dim], keys and values [n_kv_heads * head_dim] of x, with the biases that are there."""
    n_q, n_kv = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
    name = f"blk.{layer}.attn_"
    if w.has(f"{name}qkv"):
        fused = w.matrix(f"{name}qkv", n_q + 2 * n_kv, c.n_embd)
        parts = [fused.rows(0, n_q), fused.rows(n_q, n_kv), fused.rows(n_q + n_kv, n_kv)]
    else:
        parts = [w.matrix(name + "q", n_q, c.n_embd), w.matrix(name + "k", n_kv, c.n_embd)]
        parts.append(w.matrix(name + "v", n_kv, c.n_embd))
    if w.has(f"{name}qkv.bias"):
        biases: list[Vector | None] = [*w.vector_parts(f"{name}qkv.bias", (n_q, n_kv, n_kv))]
    else:
        biases = [
            w.optional_vector(f"{name}{p}.bias", part.n_rows) for p, part in zip("qkv", parts, strict=True)
        ]
    q, k, v = (b.linear(x, part, bias) for part, bias in zip(parts, biases, strict=True))
    return q, k, v


def normed_qkv(
    b: Recorder, w: Weights, c: ModelConfig, x: Value, layer: int, kind: str = "rms"
) -> tuple[Value, Value, Value]:
    """``qkv`` with each head of q and k normed by itself; the kind "layer" has weights for every head."""

    def normed(heads: Value, name: str, n_heads: int) -> Value:
        rows = n_heads if kind == "layer" else 1
        weights = w.vector(f"blk.{layer}.attn_{name}_norm", c.head_dim, rows)
        return b.head_norm(heads, weights, n_heads, kind)

    q, k, v = qkv(b, w, c, x, layer)
    return normed(q, "q", c.n_heads), normed(k, "k", c.n_kv_heads), v


def attention(
    b: Recorder,
    w: Weights,
    c: ModelConfig,
    q: Value,
    k: Value,
    v: Value,
    layer: int,
    table: RopeTable,
    scale: float | None = None,
    output_bias: bool = False,
    token_scale: int = 0,
) -> Value:
    """Rotate, concatenate to the cache, attend, project: [n_embd]."""
    q = b.rope(q, c.n_heads, table, c.head_dim**-0.5 if scale is None else scale, token_scale)
    k = b.rope(k, c.n_kv_heads, table)
    b.store(k, v, layer)
    a = b.attend(q, layer)
    name = f"blk.{layer}.attn_output"
    bias = w.optional_vector(f"{name}.bias", c.n_embd) if output_bias else None
    return b.linear(a, w.matrix(name, c.n_embd, c.n_heads * c.head_dim), bias)


def feed_forward(
    b: Recorder,
    w: Weights,
    c: ModelConfig,
    x: Value,
    layer: int,
    activation: str = "silu",
    biases: bool = False,
) -> Value:
    """down(activation(gate x) * up x), Shazeer's gated unit (arXiv:2002.05202): [n_embd]."""

    def project(source: Value, name: str, n_rows: int, n_cols: int) -> Value:
        name = f"blk.{layer}.ffn_{name}"
        bias = w.optional_vector(f"{name}.bias", n_rows) if biases else None
        return b.linear(source, w.matrix(name, n_rows, n_cols), bias)

    hidden = b.gated(project(x, "gate", c.n_ff, c.n_embd), project(x, "up", c.n_ff, c.n_embd), activation)
    return project(hidden, "down", c.n_embd, c.n_ff)


def rope_table(c: ModelConfig, neox: bool, factors: np.ndarray | None = None) -> RopeTable:
    """The rope of global layers; ``factors`` divides the frequencies, float64 [n_rot / 2]."""
    return RopeTable(c.n_ctx, c.n_rot, c.rope_base, neox, c.rope_scaling, factors)


def rope_factors(w: Weights, c: ModelConfig, name: str) -> np.ndarray | None:
    """A tensor of frequency divisors, float64 [n_rot / 2], if the file has it."""
    return w.values(name, c.n_rot // 2) if w.has(name) else None


def longrope_factors(w: Weights, c: ModelConfig) -> np.ndarray | None:
    """LongRoPE's divisors: long ones for a context beyond the original, decided when the model is opened."""
    long, short = (rope_factors(w, c, f"rope_factors_{which}") for which in ("long", "short"))
    return long if c.n_ctx > c.rope_scaling.original_context else short
