"""Nemotron H (arXiv:2504.03624): layers that are Mamba 2, attention or a feed-forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from llmgen.model.archs import architecture
from llmgen.model.blocks import PerLayer
from llmgen.model.hybrid import Hybrid
from llmgen.model.keys import Keys
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.rope import NOPE, Rope
from llmgen.model.state_space import Mamba2Layer
from llmgen.model.states import State
from llmgen.model.weights import Weights


@architecture("nemotron_h", "nemotron_h_moe")
@dataclass(frozen=True, kw_only=True)
class NemotronH(PerLayer, Hybrid):
    """Each layer has one part: a feed-forward with the square of ReLU, else attention that knows no positions
    where there are key heads, else Mamba 2."""

    models = "Nemotron H 4B to 56B, Nemotron Nano 2 9B (dense)"
    ff_kind, activation = "plain", "relu_squared"

    mixer: Mamba2Layer
    attention_scale: float

    @classmethod
    def read_eps(cls, keys: Keys) -> float:
        other = keys.real("attention.layer_norm_epsilon", low=0.0, high=1.0)
        return keys.real(cls.eps_key, other, low=0.0, high=1.0)

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        return super().read(
            keys,
            mixer=Mamba2Layer.read(keys, cls.read_eps(keys)),
            attention_scale=keys.real("attention.scale", 0.0),
            **own,
        )

    def layer_states(self, layer: int) -> list[State]:
        return [] if self.ff(layer) else super().layer_states(layer)

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        return [NOPE] * self.n_layers

    def scores(self, b: Ops, w: Weights, layer: int) -> dict[str, Any]:
        return {"scale": self.attention_scale or None}

    def block(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        h = self.norm(b, w, x, f"blk.{layer}.attn_norm")
        if self.ff(layer):
            return b.add(x, self.fed_forward(b, w, h, layer))
        return b.add(x, self.attended(b, w, h, layer, state, rope))
