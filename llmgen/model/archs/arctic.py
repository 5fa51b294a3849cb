"""Snowflake Arctic."""

from __future__ import annotations

from llmgen.model.archs import architecture
from llmgen.model.mixtures import Mixture
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.rope import Rope
from llmgen.model.weights import Weights


@architecture("arctic")
class Arctic(Mixture):
    """Llama with a narrow dense feed-forward, and beside the whole layer a mixture on the layer's input."""

    models = "Snowflake Arctic 480B A17B"
    neox, expert_size = False, "whole"

    def ff(self, layer: int) -> int:
        return self.n_embd

    def block(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        name = f"blk.{layer}."
        y = b.add(x, self.attended(b, w, self.norm(b, w, x, name + "attn_norm"), layer, state, rope))
        y = b.add(y, self.feed_forward(b, w, self.norm(b, w, y, name + self.ff_norm), layer))
        return b.add(y, self.routed(b, w, self.norm(b, w, x, name + "ffn_norm_exps"), layer))
