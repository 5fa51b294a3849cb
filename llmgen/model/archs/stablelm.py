"""StableLM 2 (arXiv:2402.17834) and its 12B variant with a parallel residual."""

from __future__ import annotations

from llmgen.model.archs import architecture
from llmgen.model.blocks import LayerNorms, PreNorm
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.rope import Rope
from llmgen.model.weights import Weights


@architecture("stablelm")
class StableLM(LayerNorms, PreNorm):
    """Layer norms, partial rotary positions on halves, optional norms per head, optional parallel residual."""

    models = "StableLM 3B, StableLM 2 1.6B and 12B"

    def block(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        name = f"blk.{layer}."
        h = self.norm(b, w, x, name + "attn_norm")
        x = b.add(x, self.attended(b, w, h, layer, state, rope))
        # without a norm of its own the feed-forward runs beside the attention, on the same input
        h = self.norm(b, w, x, name + "ffn_norm") if w.has(name + "ffn_norm") else h
        return b.add(x, self.fed_forward(b, w, h, layer))

    def projections(self, b: Ops, w: Weights, x: Value, layer: int) -> tuple[Value, Value, Value]:
        """Each head of q and k may have a layer norm with weights of its own."""
        q, k, v = self.qkv(b, w, x, layer)
        name = f"blk.{layer}.attn_"
        if w.has(name + "q_norm"):
            q_norm = w.vector(name + "q_norm", self.head_dim, self.n_heads)
            k_norm = w.vector(name + "k_norm", self.head_dim, self.n_kv_heads)
            q = b.head_layer_norm(q, q_norm, self.n_heads, self.norm_eps)
            k = b.head_layer_norm(k, k_norm, self.n_kv_heads, self.norm_eps)
        return q, k, v
