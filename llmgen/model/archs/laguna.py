"""Laguna of Poolside."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from llmgen.model.archs import architecture
from llmgen.model.archs.gated import GatedAttention
from llmgen.model.blocks import PerLayer
from llmgen.model.keys import MAX_FEED_FORWARD, MAX_HEADS, Keys
from llmgen.model.mixtures import MAX_EXPERTS, Mixture
from llmgen.model.ops import Ops, Value
from llmgen.model.positions import LocalRopes
from llmgen.model.rope import Rope
from llmgen.model.weights import Weights


@architecture("laguna")
@dataclass(frozen=True, kw_only=True)
class Laguna(GatedAttention, PerLayer, LocalRopes, Mixture):
    """Gated attention with sliding windows and normed heads, experts and a shared expert.

    The first layers are dense; heads differ from layer to layer.  Layers with the window
    rotate with numbers of their own, and are not scaled.
    """

    models = "Laguna XS and M"
    normed_heads, leading_dense, global_first, own_rotation = True, True, True, True
    gating, gating_default, normalized, scaled = None, "sigmoid", None, True

    n_rot_local: int

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        n_rot = keys.whole("rope.dimension_count_swa", 0, 0, MAX_HEADS)
        model = super().read(keys, n_rot_local=n_rot, **own)
        n_rot = n_rot or model.n_rot
        if n_rot > model.head_dim or n_rot % 2:
            raise keys.refuse("rope.dimension_count_swa", f"an even number up to the head's {model.head_dim}")
        return replace(model, n_rot_local=n_rot)

    @classmethod
    def read_shared_ff(cls, keys: Keys, n_expert_ff: int) -> int:
        given = keys.whole("expert_shared_feed_forward_length", 0, 0, MAX_FEED_FORWARD)
        return given or n_expert_ff * keys.whole("expert_shared_count", 1, 1, MAX_EXPERTS)

    def local_rope(self) -> Rope:
        return Rope.of(self.n_rot_local, self.rope_base_local, self.neox)

    def gates(self, w: Weights, layer: int) -> int:
        per_head = w.shape(f"blk.{layer}.attn_gate")[1:2] == (self.heads(layer),)
        return self.heads(layer) if per_head else super().gates(w, layer)

    def gated_heads(self, b: Ops, a: Value, gate: Value) -> Value:
        if gate.n < a.n:
            return b.gate_heads(a, gate, "softplus")
        return b.multiply(a, b.activate(gate, "softplus"))
