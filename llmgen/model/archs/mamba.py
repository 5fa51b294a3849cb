"""Mamba (arXiv:2312.00752) and Mamba 2 (arXiv:2405.21060): recurrent layers only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from llmgen.model.archs import architecture
from llmgen.model.hybrid import Hybrid
from llmgen.model.keys import Keys
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.rope import NOPE, Rope
from llmgen.model.state_space import Mamba2Layer
from llmgen.model.states import State
from llmgen.model.weights import Weights


@architecture("mamba2")
@dataclass(frozen=True, kw_only=True)
class Mamba2(Hybrid):
    """Mamba 2 layers one after another: no attention, no feed-forward, no positions."""

    models = "Mamba 2 130M to 2.7B, Codestral Mamba 7B"

    mixer: Mamba2Layer

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        # files count no heads and no feed-forward
        own = {"n_heads": 1, "n_kv_heads": 1, "n_ff": 1} | own
        mixer = Mamba2Layer.read(keys, keys.real(cls.eps_key, low=0.0, high=1.0))
        return super().read(keys, mixer=mixer, **own)

    def is_recurrent(self, layer: int) -> bool:
        return True

    def recurrent_states(self) -> list[State]:
        return self.mixer.states()

    def recurred(self, b: Ops, w: Weights, x: Value, layer: int, states: Sequence[StateHandle]) -> Value:
        return self.mixer(b, w, x, layer, states)

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        return [NOPE] * self.n_layers

    def block(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        return b.add(x, self.attended(b, w, self.norm(b, w, x, f"blk.{layer}.attn_norm"), layer, state, rope))
