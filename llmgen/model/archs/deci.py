"""Deci's Nemotron models: Llama 3 whose layers were pruned one by one (arXiv:2411.19146)."""

from __future__ import annotations

from llmgen.model.archs import architecture
from llmgen.model.blocks import PerLayer, PreNorm
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.rope import Rope
from llmgen.model.weights import Weights


@architecture("deci")
class Deci(PerLayer, PreNorm):
    """Llama in which each layer has heads and a feed-forward of its own size.

    A layer without heads has no attention, one without key heads a matrix in its place, and
    one without feed-forward ends behind its attention.
    """

    models = "Llama 3.1 Nemotron 51B, Llama 3.3 Nemotron Super 49B, Ultra 253B, DeciLM 7B"
    neox = False

    def block(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        name = f"blk.{layer}."
        if self.heads(layer):
            h = self.norm(b, w, x, name + "attn_norm")
            if self.kv_heads(layer):
                h = self.attended(b, w, h, layer, state, rope)
            else:
                h = self.project(b, w, h, name + "attn_output", self.n_embd)
            x = b.add(x, h)
        if not self.ff(layer):
            return x
        return b.add(x, self.fed_forward(b, w, self.norm(b, w, x, name + "ffn_norm"), layer))
