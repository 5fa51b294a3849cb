"""StableLM 2 (arXiv:2402.17834) and its 12B variant with a parallel residual."""

from __future__ import annotations

from llmgen.backends.cpu.plan import Value
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
from llmgen.model.config import ModelConfig
from llmgen.model.weights import Weights


def stablelm(b: Recorder, w: Weights, c: ModelConfig) -> None:
    """Layer norms, partial rotary positions on halves, optional norms per head, optional parallel residual."""

    def norm(x: Value, name: str) -> Value:
        return b.layer_norm(x, w.vector(name, c.n_embd), w.optional_vector(f"{name}.bias", c.n_embd))

    table = rope_table(c, neox=True)
    x = b.embed(embedding(w, c))
    for layer in range(c.n_layers):
        name = f"blk.{layer}."
        h = norm(x, name + "attn_norm")
        if w.has(name + "attn_q_norm"):
            q, k, v = normed_qkv(b, w, c, h, layer, "layer")
        else:
            q, k, v = qkv(b, w, c, h, layer)
        x = b.add(x, attention(b, w, c, q, k, v, layer, table))
        # without a norm of its own the feed-forward runs beside the attention, on the same input
        x = b.add(
            x, feed_forward(b, w, c, norm(x, name + "ffn_norm") if w.has(name + "ffn_norm") else h, layer)
        )
    b.logits(norm(x, "output_norm"), output_matrix(w, c))
