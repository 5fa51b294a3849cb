"""BitNet b1.58 (arXiv:2402.17764)."""

from __future__ import annotations

from llmgen.model.archs import architecture
from llmgen.model.blocks import PreNorm
from llmgen.model.ops import Ops, Value
from llmgen.model.weights import Matrix, Weights


@architecture("bitnet")
class BitNet(PreNorm):
    """Llama with a norm more before the attention's output matrix and before the feed-forward's; always tied."""

    models = "BitNet b1.58 large and 3B"

    def attention_output(self, b: Ops, w: Weights, a: Value, layer: int) -> Value:
        return super().attention_output(b, w, self.norm(b, w, a, f"blk.{layer}.attn_sub_norm"), layer)

    def feed_forward(self, b: Ops, w: Weights, x: Value, layer: int, activation: str = "silu") -> Value:
        name, n_ff = f"blk.{layer}.ffn_", self.ff(layer)
        gate, up = (self.ff_project(b, w, x, name + which, n_ff) for which in ("gate", "up"))
        y = self.norm(b, w, self.ff_gated(b, gate, up, layer, activation), f"{name}sub_norm")
        return self.ff_project(b, w, y, f"{name}down", self.n_embd)

    def output_matrix(self, w: Weights) -> Matrix:
        return self.embedding(w)
