"""MiniMax M2."""

from __future__ import annotations

from llmgen.model.archs import architecture
from llmgen.model.mixtures import Mixture
from llmgen.model.ops import Ops, Value
from llmgen.model.weights import Weights


@architecture("minimax-m2")
class MiniMaxM2(Mixture):
    """Experts with a bias on their choice; q and k are normed over their whole width; half of a head rotates."""

    models = "MiniMax M2 and M2.1"
    gating, expert_size = None, "whole"

    def projections(self, b: Ops, w: Weights, x: Value, layer: int) -> tuple[Value, Value, Value]:
        q, k, v = self.qkv(b, w, x, layer)
        name = f"blk.{layer}.attn_"
        return self.norm(b, w, q, name + "q_norm"), self.norm(b, w, k, name + "k_norm"), v
