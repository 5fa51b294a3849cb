"""MiMo V2 of Xiaomi."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from llmgen.model.archs import architecture
from llmgen.model.blocks import DraftLayers, PerLayer
from llmgen.model.keys import Keys
from llmgen.model.mixtures import ByTensors
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.positions import LocalRopes
from llmgen.model.rope import Rope
from llmgen.model.weights import Weights


@architecture("mimo2")
@dataclass(frozen=True, kw_only=True)
class MiMo2(DraftLayers, PerLayer, LocalRopes, ByTensors):
    """Sliding windows with attention sinks, heads that differ from layer to layer, experts without a shared one."""

    models = "MiMo V2 Flash"
    window_default, window_period, local_base_default, local_scaled = None, 0, 10000.0, False
    gating, qkv_bias = "sigmoid", False

    value_scale: float

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        return super().read(keys, value_scale=keys.real("attention.value_scale", 0.0), **own)

    def scores(self, b: Ops, w: Weights, layer: int) -> dict[str, Any]:
        return {"sinks": w.optional_vector(f"blk.{layer}.attn_sinks", self.heads(layer))}

    def attended(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        return b.scale(super().attended(b, w, x, layer, state, rope), self.value_scale or 1.0)
