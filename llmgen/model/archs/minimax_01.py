"""MiniMax 01 (arXiv:2501.08313): lightning attention, and softmax attention in every eighth layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from llmgen.model.archs import architecture
from llmgen.model.hybrid import Hybrid, recurrent_layers
from llmgen.model.keys import Keys
from llmgen.model.mixtures import Mixture
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.rope import Rope
from llmgen.model.states import Recurrent, State
from llmgen.model.weights import Vector, Weights


@dataclass(frozen=True)
class LightningAttention:
    """Linear attention in which each head forgets at a rate of its own, the slower the later the layer."""

    n_layers: int
    n_heads: int
    head_dim: int
    eps: float

    def states(self) -> list[State]:
        """Its states: the heads' state."""
        return [Recurrent(self.head_dim, self.n_heads * self.head_dim)]

    def __call__(self, b: Ops, w: Weights, x: Value, layer: int, states: Sequence[StateHandle]) -> Value:
        name, n, inner = f"blk.{layer}.attn_", self.n_heads, self.n_heads * self.head_dim
        qkv = b.activate(b.linear(x, w.matrix(f"{name}qkv", 3 * inner, x.n)), "silu")
        q, k, v = (b.head_part(qkv, n, i * self.head_dim, self.head_dim) for i in range(3))
        y = b.linear_attend(q, k, v, self.decay(w, layer), states[0], n)
        y = b.rms_norm(y, w.vector(f"{name}norm_2", inner), self.eps)
        y = b.gated(b.linear(x, w.matrix(f"{name}gate", inner, x.n)), y, "sigmoid")
        return b.linear(y, w.matrix(f"{name}output", x.n, inner))

    def decay(self, w: Weights, layer: int) -> Vector:
        """e^-slope of each head, with the slopes of ALiBi (arXiv:2108.12409) times a factor that falls to 1e-5."""
        first = 2.0 ** -(2.0 ** -(np.log2(self.n_heads) - 3))
        factor = 1 - layer / max(self.n_layers - 1, 1) + 1e-5
        slopes = first ** np.arange(1, self.n_heads + 1) * factor
        return w.derived(f"decay of layer {layer}", lambda: np.exp(-slopes))


@architecture("minimax-01")
@dataclass(frozen=True, kw_only=True)
class MiniMax01(Mixture, Hybrid):
    """Lightning attention, softmax attention in some layers, and experts.

    What attention and experts give is added to the output of the norm before them, not to its input.
    """

    models = "MiniMax Text 01, MiniMax M1"
    expert_size = "whole"

    mixer: LightningAttention
    recurrent: tuple[bool, ...]
    """For each layer whether it has lightning attention."""
    residual_scale: float

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        model = super().read(
            keys,
            mixer=None,
            recurrent=recurrent_layers(keys, period=8),
            residual_scale=keys.real("residual_scale"),
            **own,
        )
        sizes = model.n_layers, model.n_heads, model.head_dim, model.norm_eps
        return replace(model, mixer=LightningAttention(*sizes))

    def is_recurrent(self, layer: int) -> bool:
        return self.recurrent[layer]

    def block(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        name = f"blk.{layer}."
        h = self.norm(b, w, x, name + "attn_norm")
        x = b.add(self.attended(b, w, h, layer, state, rope), b.scale(h, self.residual_scale))
        h = self.norm(b, w, x, name + "ffn_norm")
        return b.add(self.fed_forward(b, w, h, layer), b.scale(h, self.residual_scale))
