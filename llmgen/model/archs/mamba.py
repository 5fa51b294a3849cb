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
from llmgen.model.state_space import Mamba2Layer, MambaLayer
from llmgen.model.weights import Weights


class RecurrentOnly(Hybrid):
    """Every layer is a norm and a mixer with a recurrent state."""

    mixer: MambaLayer | Mamba2Layer

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        # files count no heads and no feed-forward
        return super().read(keys, **{"n_heads": 1, "n_kv_heads": 1, "n_ff": 1} | own)

    def is_recurrent(self, layer: int) -> bool:
        return True

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        return [NOPE] * self.n_layers

    def block(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        return b.add(x, self.attended(b, w, self.norm(b, w, x, f"blk.{layer}.attn_norm"), layer, state, rope))


@architecture("mamba")
@dataclass(frozen=True, kw_only=True)
class Mamba(RecurrentOnly):
    """Mamba layers one after another: no attention, no feed-forward, no positions."""

    models = "Mamba 130M to 2.8B, Falcon Mamba 7B"

    mixer: MambaLayer

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        return super().read(keys, mixer=MambaLayer.read(keys, cls.read_eps(keys)), **own)


@architecture("mamba2")
@dataclass(frozen=True, kw_only=True)
class Mamba2(RecurrentOnly):
    """Mamba 2 layers one after another: no attention, no feed-forward, no positions."""

    models = "Mamba 2 130M to 2.7B, Codestral Mamba 7B"

    mixer: Mamba2Layer

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        return super().read(keys, mixer=Mamba2Layer.read(keys, cls.read_eps(keys)), **own)
