"""OLMo 2 (arXiv:2501.00656)."""

from __future__ import annotations

from llmgen.backends.cpu.recorder import Recorder
from llmgen.model.archs.blocks import attention, embedding, feed_forward, output_matrix, qkv, rope_table
from llmgen.model.config import ModelConfig
from llmgen.model.rope import RopeTable
from llmgen.model.weights import Weights


def olmo2(b: Recorder, w: Weights, c: ModelConfig) -> None:
    """Norms after the blocks instead of before them; q and k are normed over their whole width."""
    table = rope_table(c, neox=True)
    local = RopeTable(c.n_ctx, c.n_rot, c.rope_base, True)
    x = b.embed(embedding(w, c))
    for layer in range(c.n_layers):
        name = f"blk.{layer}."
        q, k, v = qkv(b, w, c, x, layer)
        q = b.rms_norm(q, w.vector(name + "attn_q_norm", c.n_heads * c.head_dim))
        k = b.rms_norm(k, w.vector(name + "attn_k_norm", c.n_kv_heads * c.head_dim))
        a = attention(b, w, c, q, k, v, layer, local if c.is_local(layer) else table)
        x = b.add(x, b.rms_norm(a, w.vector(name + "post_attention_norm", c.n_embd)))
        f = feed_forward(b, w, c, x, layer)
        x = b.add(x, b.rms_norm(f, w.vector(name + "post_ffw_norm", c.n_embd)))
    b.logits(b.rms_norm(x, w.vector("output_norm", c.n_embd)), output_matrix(w, c))
