"""Nemotron H (arXiv:2504.03624): layers that are Mamba 2, attention or a feed-forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from llmgen.model.archs import architecture
from llmgen.model.blocks import DraftLayers, PerLayer
from llmgen.model.hybrid import Hybrid
from llmgen.model.keys import MAX_FEED_FORWARD, MAX_LAYERS, Keys
from llmgen.model.mixtures import Mixture
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.rope import NOPE, Rope
from llmgen.model.state_space import Mamba2Layer
from llmgen.model.states import State
from llmgen.model.weights import Weights


@architecture("nemotron_h")
@dataclass(frozen=True, kw_only=True)
class NemotronH(DraftLayers, PerLayer, Hybrid):
    """Each layer has one part: a feed-forward with the square of ReLU, else attention without positions
    where there are key heads, else Mamba 2."""

    models = "Nemotron H 4B to 56B, Nemotron Nano 2 9B (dense)"
    ff_kind, activation = "plain", "relu_squared"

    mixer: Mamba2Layer

    @classmethod
    def read_eps(cls, keys: Keys) -> float:
        other = keys.real("attention.layer_norm_epsilon", low=0.0, high=1.0)
        return keys.real(cls.eps_key, other, low=0.0, high=1.0)

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        return super().read(
            keys,
            mixer=Mamba2Layer.read(keys, cls.read_eps(keys)),
            **own,
        )

    def layer_states(self, layer: int) -> list[State]:
        return [] if self.ff(layer) else super().layer_states(layer)

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        return [NOPE] * self.n_layers

    def block(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        h = self.norm(b, w, x, f"blk.{layer}.attn_norm")
        if self.ff(layer):
            return b.add(x, self.fed_forward(b, w, h, layer))
        return b.add(x, self.attended(b, w, h, layer, state, rope))


@architecture("nemotron_h_moe")
@dataclass(frozen=True, kw_only=True)
class NemotronHMoE(Mixture, NemotronH):
    """Nemotron H with experts, perhaps narrower than the model, and a shared expert."""

    models = "Nemotron 3 Nano 30B A3B and Super 120B A12B"
    gating, normalized, scaled = "sigmoid", None, True
    may_be_dense, shared_size = True, "key"

    latent: int
    """Width of the experts' input, where it is narrower than the model."""

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        return super().read(keys, latent=keys.whole("moe_latent_size", 0, 0), **own)

    @classmethod
    def read_expert_ff(cls, keys: Keys, n_used: int) -> int:
        n_layers = keys.whole("block_count", high=MAX_LAYERS)
        widest = max(keys.per_layer("feed_forward_length", n_layers, high=MAX_FEED_FORWARD))
        return keys.whole("expert_feed_forward_length", 0, 0, MAX_FEED_FORWARD) or widest // max(n_used, 1)

    def routed(self, b: Ops, w: Weights, x: Value, layer: int) -> Value:
        name = f"blk.{layer}.ffn_latent_"
        choice = self.chosen(b, w, self.router_logits(b, w, x, layer), layer)
        if not w.has(f"{name}down"):
            return b.mix(self.experts(b, w, x, choice, layer), choice)
        narrow = self.project(b, w, x, f"{name}down", self.latent)
        return self.project(
            b, w, b.mix(self.experts(b, w, narrow, choice, layer), choice), f"{name}up", self.n_embd
        )
