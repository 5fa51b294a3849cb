"""Step 3.5 of StepFun (llama.cpp's src/models/step35.cpp)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from llmgen.model.archs import architecture
from llmgen.model.archs.gated import GatedAttention
from llmgen.model.blocks import DraftLayers, PerLayer
from llmgen.model.keys import MAX_CONTEXT, MAX_HEADS, MAX_LAYERS, Keys
from llmgen.model.mixtures import ByTensors
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.positions import LocalRopes
from llmgen.model.rope import Rope
from llmgen.model.weights import Weights


@architecture("step35")
@dataclass(frozen=True, kw_only=True)
class Step35(DraftLayers, GatedAttention, PerLayer, LocalRopes, ByTensors):
    """Sliding windows, a gate for each head, heads that differ from layer to layer, experts and a shared expert
    whose gates and values have limits; layers with full attention rotate half as many values as the others."""

    models = "Step 3.5 Flash 196B A11B"
    local_base_default, local_scaled, own_rotation = 10000.0, False, True
    gating, gating_default, normalized, scaled, shared_size = None, "sigmoid", None, True, "key"

    n_rot_local: int
    expert_limits: tuple[float, ...]
    """For each layer the largest value inside an expert, of the gate's silu and for the magnitude of what it
    gates; 0: none."""
    other_limits: tuple[float, ...]
    """The same for dense feed-forwards and for the shared expert."""

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        n_layers = keys.whole("block_count", low=1, high=MAX_LAYERS)
        n_used = n_layers - keys.whole("nextn_predict_layers", 0, 0, n_layers - 1)
        pattern = keys.per_layer("attention.sliding_window_pattern", n_used, high=1)
        model = super().read(
            keys,
            window=keys.whole("attention.sliding_window", high=MAX_CONTEXT),
            local=tuple(flag != 0 for flag in pattern),
            n_rot_local=0,
            expert_limits=keys.per_layer_real("swiglu_clamp_exp", n_layers, 0.0),
            other_limits=keys.per_layer_real("swiglu_clamp_shexp", n_layers, 0.0),
            **own,
        )
        n_rot = keys.whole("rope.dimension_count_swa", model.n_rot, 0, MAX_HEADS)
        if n_rot > model.head_dim or n_rot % 2 or model.n_rot % 4:
            raise keys.refuse("rope.dimension_count_swa", f"an even number up to the head's {model.head_dim}")
        return replace(model, n_rot=model.n_rot // 2, n_rot_local=n_rot)

    def local_rope(self) -> Rope:
        return Rope.of(self.n_rot_local, self.rope_base_local, self.neox, self.rope_scaling.unstretched())

    def rope_factors(self, w: Weights, name: str) -> np.ndarray | None:
        """The file has them for the layers that rotate most; only layers with full attention use theirs."""
        most = max(self.n_rot_local if is_local else self.n_rot for is_local in self.local)
        return w.values(name, most // 2)[: self.n_rot // 2] if w.has(name) else None

    def attended(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        if w.has(f"blk.{layer}.attn_gate"):
            return super().attended(b, w, x, layer, state, rope)
        return self.attention(b, w, self.projections(b, w, x, layer), layer, state, rope)

    def gates(self, w: Weights, layer: int) -> int:
        return self.heads(layer)

    def projections(self, b: Ops, w: Weights, x: Value, layer: int) -> tuple[Value, Value, Value]:
        normed = w.has(f"blk.{layer}.attn_q_norm")
        return self.normed_qkv(b, w, x, layer) if normed else self.qkv(b, w, x, layer)

    def expert_gated(self, b: Ops, gate: Value, up: Value, layer: int) -> Value:
        return _limited(b, gate, up, self.expert_limits[layer])

    def shared_gated(self, b: Ops, gate: Value, up: Value, layer: int) -> Value:
        return _limited(b, gate, up, self.other_limits[layer])

    def ff_gated(self, b: Ops, gate: Value, up: Value, layer: int, activation: str) -> Value:
        return _limited(b, gate, up, self.other_limits[layer])


def _limited(b: Ops, gate: Value, up: Value, limit: float) -> Value:
    """silu(gate) * up within a limit; llama.cpp takes one of no more than 1e-6 for none."""
    if limit <= 1e-6:
        return b.gated(gate, up, "silu")
    return b.multiply(b.at_most(b.activate(gate, "silu"), limit), b.clamp(up, limit))
