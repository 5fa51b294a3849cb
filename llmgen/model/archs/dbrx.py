"""DBRX (Databricks, 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from llmgen.model.archs import architecture
from llmgen.model.blocks import LayerNorms
from llmgen.model.keys import Keys
from llmgen.model.mixtures import Mixture
from llmgen.model.ops import Ops, Value
from llmgen.model.weights import Weights


@architecture("dbrx")
@dataclass(frozen=True, kw_only=True)
class DBRX(LayerNorms, Mixture):
    """Layer norms, rotary positions on halves, clamped q, k and v, experts."""

    models = "DBRX 132B A36B"
    ff_norm, expert_size = "attn_output_norm", "whole"

    clamp: float

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        return super().read(keys, clamp=keys.real("attention.clamp_kqv"), **own)

    def qkv(self, b: Ops, w: Weights, x: Value, layer: int) -> tuple[Value, Value, Value]:
        q, k, v = super().qkv(b, w, x, layer)
        if not self.clamp:
            return q, k, v
        return b.clamp(q, self.clamp), b.clamp(k, self.clamp), b.clamp(v, self.clamp)
