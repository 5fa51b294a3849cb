"""Jamba (arXiv:2403.19887): Mamba, and attention in a few layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from llmgen.model.archs import architecture
from llmgen.model.blocks import PerLayer
from llmgen.model.hybrid import Hybrid
from llmgen.model.keys import Keys
from llmgen.model.mixtures import Mixture
from llmgen.model.ops import Ops, Value
from llmgen.model.rope import NOPE, Rope
from llmgen.model.state_space import MambaLayer
from llmgen.model.weights import Weights


@architecture("jamba")
@dataclass(frozen=True, kw_only=True)
class Jamba(PerLayer, Mixture, Hybrid):
    """Layers without key heads are Mamba with normed step, B and C; the others have attention without positions.

    A layer with a router has experts.
    """

    models = "Jamba 1.5, 1.6, Jamba Reasoning 3B"
    may_be_dense, expert_size, normalized = True, "whole", False

    mixer: MambaLayer

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        return super().read(keys, mixer=MambaLayer.read(keys, cls.read_eps(keys)), **own)

    def fed_forward(self, b: Ops, w: Weights, x: Value, layer: int) -> Value:
        if w.has(f"blk.{layer}.ffn_gate_inp"):
            return super().fed_forward(b, w, x, layer)
        return self.feed_forward(b, w, x, layer)

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        return [NOPE] * self.n_layers
