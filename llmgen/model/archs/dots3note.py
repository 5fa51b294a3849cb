"""dots3 note of rednote."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from llmgen.model.archs import architecture
from llmgen.model.blocks import DraftLayers, PerLayer
from llmgen.model.indexer import Indexed
from llmgen.model.keys import MAX_CONTEXT, MAX_HEADS, MAX_LAYERS, Keys
from llmgen.model.mixtures import Mixture
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.positions import LocalRopes
from llmgen.model.rope import Rope
from llmgen.model.states import State
from llmgen.model.weights import Weights


@architecture("dots3note")
@dataclass(frozen=True, kw_only=True)
class Dots3Note(DraftLayers, PerLayer, LocalRopes, Indexed, Mixture):
    """Gated latent attention, with sliding windows in some layers and keys chosen by an indexer in the others.

    Layers with the window have latent attention of other sizes and rotate with a base of their own. Experts
    and a shared expert; the first layers are dense.
    """

    models = "dots3 note 288B A19B"
    neox, own_heads = False, True
    gating, leading_dense, scaled, normalized, shared_size = None, True, True, None, "count"

    local_rank: int
    local_head_dim: int
    local_value_dim: int
    """``kv_lora_rank``, ``head_dim`` and ``value_dim`` of layers with the window."""

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        n_layers = keys.whole("block_count", low=1, high=MAX_LAYERS)
        n_layers -= keys.whole("nextn_predict_layers", 0, 0, n_layers - 1)
        key = "attention.sliding_window_pattern"
        local = tuple(flag != 0 for flag in keys.per_layer(key, n_layers, high=1))
        key = "attention.indexer.types"
        indexed = keys.per_layer(key, n_layers, high=1)
        if not all(map(max, indexed, local)):
            raise keys.refuse(key, "an indexer in each layer without a window")
        model = super().read(
            keys,
            window=keys.whole("attention.sliding_window", high=MAX_CONTEXT),
            local=local,
            has_indexer=tuple(not is_local for is_local in local),
            indexer_eps=1e-6,
            local_rank=keys.whole("attention.kv_lora_rank_swa"),
            local_head_dim=keys.whole("attention.key_length_mla_swa", high=MAX_HEADS),
            local_value_dim=keys.whole("attention.value_length_mla_swa", high=MAX_HEADS),
            **own,
        )
        if model.local_head_dim <= model.n_rot:
            raise keys.refuse("attention.key_length_mla_swa", f"more than the {model.n_rot} rotated values")
        return model

    def sized(self, layer: int) -> Self:
        """The model with the sizes of a layer's latent attention."""
        if not self.local[layer]:
            return self
        return replace(
            self, kv_lora_rank=self.local_rank, head_dim=self.local_head_dim, value_dim=self.local_value_dim
        )

    def kv_state(self, layer: int) -> State:
        return super(Dots3Note, self.sized(layer)).kv_state(layer)

    def factors(self, b: Ops, w: Weights) -> np.ndarray | None:
        return None

    def found(
        self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope, **seen: Any
    ) -> Value:
        gate = self.project(b, w, x, f"blk.{layer}.attn_gate", self.heads(layer))
        return b.gate_heads(super(Dots3Note, self.sized(layer)).found(b, w, x, layer, state, rope), gate)

    def key_position(self, b: Ops, w: Weights, position: Value, layer: int) -> Value:
        return self.norm(b, w, position, f"blk.{layer}.attn_k_norm")
