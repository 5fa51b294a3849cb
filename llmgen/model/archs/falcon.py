"""Falcon (arXiv:2311.16867)."""

from __future__ import annotations

from llmgen.model.archs import architecture
from llmgen.model.blocks import LayerNorms, PreNorm
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.rope import Rope
from llmgen.model.weights import Weights


@architecture("falcon")
class Falcon(LayerNorms, PreNorm):
    """Attention beside a plain feed-forward, rotary positions on halves; the attention may have a norm of its own."""

    models = "Falcon 7B, 40B and 180B"
    ff_kind, activation = "plain", "gelu"

    def block(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        name = f"blk.{layer}.attn_norm"
        h = self.norm(b, w, x, name)
        own = self.norm(b, w, x, name + "_2") if w.has(name + "_2") else h
        x = b.add(x, self.attended(b, w, own, layer, state, rope))
        return b.add(x, self.fed_forward(b, w, h, layer))
