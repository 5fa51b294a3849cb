"""StableLM 2 (arXiv:2402.17834) and its 12B variant with a parallel residual."""

from __future__ import annotations

from llmgen.model.archs import architecture
from llmgen.model.blocks import LayerNormedHeads, LayerNorms
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.rope import Rope
from llmgen.model.weights import Weights


@architecture("stablelm")
class StableLM(LayerNorms, LayerNormedHeads):
    """Layer norms, partial rotary positions on halves, optional norms per head, optional parallel residual."""

    models = "StableLM 3B, StableLM 2 1.6B and 12B"

    def block(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        name = f"blk.{layer}."
        h = self.norm(b, w, x, name + "attn_norm")
        x = b.add(x, self.attended(b, w, h, layer, state, rope))
        # without a norm of its own the feed-forward runs beside the attention, on the same input
        h = self.norm(b, w, x, name + "ffn_norm") if w.has(name + "ffn_norm") else h
        return b.add(x, self.fed_forward(b, w, h, layer))
