"""Ling 3 and Ring 3: delta attention and gated latent attention."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from llmgen.model.archs import architecture
from llmgen.model.blocks import DraftLayers, PerLayer
from llmgen.model.delta_net import KimiDeltaAttention
from llmgen.model.hybrid import Hybrid
from llmgen.model.keys import MAX_FEED_FORWARD, MAX_LAYERS, Keys
from llmgen.model.latent import LatentAttention
from llmgen.model.mixtures import MAX_EXPERTS, Mixture
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.positions import Sections
from llmgen.model.rope import Rope
from llmgen.model.weights import Weights


@architecture("bailingmoe3")
@dataclass(frozen=True, kw_only=True)
class BailingMoE3(DraftLayers, PerLayer, Mixture, Hybrid, Sections, LatentAttention):
    """Delta attention whose decay has a lower bound where a layer has no key heads, else latent attention with a
    gate for each head; experts."""

    models = "Ling 3 and Ring 3"
    neox, sections_required = False, False
    gating, leading_dense, scaled, normalized = None, True, True, None

    mixer: KimiDeltaAttention
    expert_limits: tuple[float, ...]
    """For each layer the largest value inside an expert, for the gate's silu and for what it gates; 0: none."""
    other_limits: tuple[float, ...]
    """The same for dense feed-forwards and for the shared expert."""

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        if not keys.flag("kda.safe_gate", True):
            raise keys.refuse("kda.safe_gate", "true")
        bound = keys.real("kda.gate_lower_bound", low=-1e3, high=-1e-3)
        mixer = KimiDeltaAttention.read(keys, cls.read_eps(keys), bound)
        return super().read(
            keys,
            mixer=mixer,
            expert_limits=_limits(keys, "swiglu_clamp_exp"),
            other_limits=_limits(keys, "swiglu_clamp_shexp"),
            **own,
        )

    @classmethod
    def read_shared_ff(cls, keys: Keys, n_expert_ff: int) -> int:
        count = keys.whole("expert_shared_count", low=0, high=MAX_EXPERTS)
        given = keys.whole("expert_shared_feed_forward_length", 0, 0, MAX_FEED_FORWARD)
        return given or n_expert_ff * max(1, count)

    def found(
        self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope, **seen: Any
    ) -> Value:
        gate = b.linear(x, w.matrix(f"blk.{layer}.attn_gate", self.heads(layer), self.n_embd))
        return b.gate_heads(super().found(b, w, x, layer, state, rope, **seen), gate)

    def expert_gated(self, b: Ops, gate: Value, up: Value, layer: int) -> Value:
        return self.limited(b, gate, up, self.expert_limits[layer])

    def shared_gated(self, b: Ops, gate: Value, up: Value, layer: int) -> Value:
        return self.limited(b, gate, up, self.other_limits[layer])

    def ff_gated(self, b: Ops, gate: Value, up: Value, layer: int, activation: str) -> Value:
        return self.limited(b, gate, up, self.other_limits[layer])

    def limited(self, b: Ops, gate: Value, up: Value, limit: float) -> Value:
        """silu(gate) * up, neither of them beyond a limit."""
        if not limit:
            return b.gated(gate, up, "silu")
        return b.multiply(b.clamp(b.activate(gate, "silu"), limit), b.clamp(up, limit))


def _limits(keys: Keys, key: str) -> tuple[float, ...]:
    """A limit for each layer; silu is above -0.28, so that larger limits bind it from above only."""
    n_layers, given = keys.whole("block_count", high=MAX_LAYERS), keys.get(key)
    if given is None:
        return (0.0,) * n_layers
    if not isinstance(given, np.ndarray):
        return (_limit(keys, key, given),) * n_layers
    if len(given) < n_layers:
        raise keys.refuse(key, f"a number for each of {n_layers} layers")
    return tuple(_limit(keys, key, value) for value in given[:n_layers].tolist())


def _limit(keys: Keys, key: str, value: object) -> float:
    """0 for none, as llama.cpp takes what is not above 1e-6."""
    if not isinstance(value, int | float) or not math.isfinite(value) or 1e-6 < value < 0.3:
        raise keys.refuse(key, "0 or at least 0.3")
    return float(value) if value > 1e-6 else 0.0
