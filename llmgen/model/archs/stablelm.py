"""StableLM 2 (arXiv:2402.17834) and its 12B variant with a parallel residual."""

from __future__ import annotations

from collections.abc import Sequence

from llmgen.model.archs import architecture
from llmgen.model.decoder import Decoder
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.weights import Weights


@architecture("stablelm")
class StableLM(Decoder):
    """Layer norms, partial rotary positions on halves, optional norms per head, optional parallel residual."""

    eps_key = "attention.layer_norm_epsilon"

    def norm(self, b: Ops, w: Weights, x: Value, name: str) -> Value:
        return b.layer_norm(x, w.vector(name, x.n), w.optional_vector(f"{name}.bias", x.n), self.norm_eps)

    def normed_qkv(self, b: Ops, w: Weights, x: Value, layer: int) -> tuple[Value, Value, Value]:
        """Each head of q and k has a layer norm with weights of its own."""
        q, k, v = self.qkv(b, w, x, layer)
        q_norm = w.vector(f"blk.{layer}.attn_q_norm", self.head_dim, self.n_heads)
        k_norm = w.vector(f"blk.{layer}.attn_k_norm", self.head_dim, self.n_kv_heads)
        q = b.head_layer_norm(q, q_norm, self.n_heads, self.norm_eps)
        return q, b.head_layer_norm(k, k_norm, self.n_kv_heads, self.norm_eps), v

    def forward(self, b: Ops, w: Weights, states: Sequence[StateHandle]) -> None:
        rope = self.rope()
        x = b.embed(self.embedding(w))
        for layer in range(self.n_layers):
            name = f"blk.{layer}."
            h = self.norm(b, w, x, name + "attn_norm")
            projections = self.normed_qkv if w.has(name + "attn_q_norm") else self.qkv
            x = b.add(x, self.attention(b, w, projections(b, w, h, layer), layer, states[layer], rope))
            # without a norm of its own the feed-forward runs beside the attention, on the same input
            h = self.norm(b, w, x, name + "ffn_norm") if w.has(name + "ffn_norm") else h
            x = b.add(x, self.feed_forward(b, w, h, layer))
        b.logits(self.norm(b, w, x, "output_norm"), self.output_matrix(w))
