"""Falcon H1 (arXiv:2507.22448): attention and Mamba 2 side by side in every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from llmgen.model.archs import architecture
from llmgen.model.hybrid import Hybrid
from llmgen.model.keys import Keys
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.rope import Rope
from llmgen.model.state_space import Mamba2Layer
from llmgen.model.states import State
from llmgen.model.weights import Weights


@architecture("falcon-h1")
@dataclass(frozen=True, kw_only=True)
class FalconH1(Hybrid):
    """Attention and Mamba 2 side by side in each layer, on the same input."""

    models = "Falcon H1 0.5B to 34B"
    output_bias = False

    mixer: Mamba2Layer

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        return super().read(
            keys,
            mixer=Mamba2Layer.read(keys, cls.read_eps(keys)),
            **own,
        )

    def layer_states(self, layer: int) -> list[State]:
        return [self.kv_state(layer), *self.mixer.states()]

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        w.skip("rope_freqs")  # llama.cpp's graph does not use them
        return [self.rope()] * self.n_layers

    def attended(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        found = super().attended(b, w, x, layer, state[:1], rope)
        return b.add(found, self.mixer(b, w, x, layer, state[1:]))
