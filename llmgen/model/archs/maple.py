"""Maple."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from llmgen.model.archs import architecture
from llmgen.model.blocks import LocalRopes
from llmgen.model.keys import MAX_LAYERS, Keys
from llmgen.model.mixtures import Mixture
from llmgen.model.ops import Ops, Value
from llmgen.model.rope import NOPE, Rope
from llmgen.model.weights import Weights


@architecture("maple")
@dataclass(frozen=True, kw_only=True)
class Maple(LocalRopes, Mixture):
    """Qwen 3 with experts whose gates and values are clamped; layers with full attention do not rotate."""

    models = "Maple"
    normed_heads, window_default, window_period = True, None, 0

    clamps: tuple[float, ...]
    """For each layer the largest value of an expert's gate and up projection; 0: no limit."""

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        n_layers = keys.whole("block_count", high=MAX_LAYERS)
        return super().read(keys, clamps=keys.per_layer_real("swiglu_clamp_exp", n_layers), **own)

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        local = self.local_rope()
        return [local if is_local else NOPE for is_local in self.local]

    def expert_gated(self, b: Ops, gate: Value, up: Value, layer: int) -> Value:
        limit = self.clamps[layer]
        if limit > 1e-6:
            gate, up = b.at_most(gate, limit), b.clamp(up, limit)
        return super().expert_gated(b, gate, up, layer)
