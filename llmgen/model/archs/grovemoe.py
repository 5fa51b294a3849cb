"""GroveMoE of inclusionAI (arXiv:2508.07785)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from llmgen.model.archs import architecture
from llmgen.model.keys import MAX_FEED_FORWARD, Keys
from llmgen.model.mixtures import MAX_EXPERTS, Mixture
from llmgen.model.ops import Ops, Value
from llmgen.model.weights import Weights


@architecture("grovemoe")
@dataclass(frozen=True, kw_only=True)
class GroveMoE(Mixture):
    """Qwen 3 with experts, to whose output is added what small experts, shared by neighbours, make of it."""

    models = "GroveMoE 33B"
    normed_heads, expert_size = True, "divided"

    shared_by: int
    """Neighbouring experts that share a small one."""
    n_small_ff: int
    small_scale: float

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        n_experts = keys.whole("expert_count", high=MAX_EXPERTS)
        shared_by = keys.whole("experts_per_group", high=n_experts)
        if n_experts % shared_by:
            raise keys.refuse("experts_per_group", f"a divisor of the {n_experts} experts")
        n_small_ff = keys.whole("expert_chunk_feed_forward_length", 0, 0, MAX_FEED_FORWARD)
        scale = keys.real("expert_group_scale")
        return super().read(keys, shared_by=shared_by, n_small_ff=n_small_ff, small_scale=scale, **own)

    def routed(self, b: Ops, w: Weights, x: Value, layer: int) -> Value:
        logits = self.router_logits(b, w, x, layer)
        choice = self.chosen(b, w, logits, layer)
        y = b.mix(self.experts(b, w, x, choice, layer), choice)
        n_small = self.n_experts // self.shared_by
        small = b.choose_experts(logits, min(self.n_used, n_small), normalize=True, shared_by=self.shared_by)
        name, n_ff = f"blk.{layer}.ffn_", self.n_small_ff or self.head_dim
        gate, up = (
            b.expert_linear(y, w.experts(f"{name}{part}_chexps", n_small, n_ff, self.n_embd), small)
            for part in ("gate", "up")
        )
        down = w.experts(f"{name}down_chexps", n_small, self.n_embd, n_ff)
        inner = b.gated(gate, up, self.activation)
        return b.add(y, b.scale(b.mix(b.expert_linear(inner, down, small), small), self.small_scale))
