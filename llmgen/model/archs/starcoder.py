"""StarCoder 2 (arXiv:2402.19173)."""

from __future__ import annotations

from collections.abc import Sequence

from llmgen.model.archs import architecture
from llmgen.model.decoder import Decoder
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.weights import Weights


@architecture("starcoder2")
class StarCoder2(Decoder):
    """Layer norms, rotary positions on halves, a plain feed-forward with gelu, biases everywhere."""

    eps_key = "attention.layer_norm_epsilon"

    def norm(self, b: Ops, w: Weights, x: Value, name: str) -> Value:
        return b.layer_norm(x, w.vector(name, x.n), w.optional_vector(f"{name}.bias", x.n), self.norm_eps)

    def forward(self, b: Ops, w: Weights, states: Sequence[StateHandle]) -> None:
        rope = self.rope()
        x = b.embed(self.embedding(w))
        for layer in range(self.n_layers):
            name = f"blk.{layer}."
            qkv = self.qkv(b, w, self.norm(b, w, x, name + "attn_norm"), layer)
            x = b.add(x, self.attention(b, w, qkv, layer, states[layer], rope, output_bias=True))
            h = self.norm(b, w, x, name + "ffn_norm")
            up = self.project(b, w, h, name + "ffn_up", self.n_ff)
            x = b.add(x, self.project(b, w, b.activate(up, "gelu"), name + "ffn_down", self.n_embd))
        b.logits(self.norm(b, w, x, "output_norm"), self.output_matrix(w))

    def project(self, b: Ops, w: Weights, x: Value, name: str, n_rows: int) -> Value:
        """x times the matrix ``name``, with its bias where the file has one."""
        return b.linear(x, w.matrix(name, n_rows, x.n), w.optional_vector(f"{name}.bias", n_rows))
