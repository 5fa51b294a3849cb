"""Llama 4: attention within chunks, layers without rotation, experts in every n-th layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from llmgen.model.archs import architecture
from llmgen.model.keys import MAX_LAYERS, Keys
from llmgen.model.mixtures import Mixture
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.positions import Windowed
from llmgen.model.rope import NOPE, Rope
from llmgen.model.states import KV, State
from llmgen.model.weights import Weights


@architecture("llama4")
@dataclass(frozen=True, kw_only=True)
class Llama4(Windowed, Mixture):
    """Three of four layers see the keys of a chunk of 8192 positions; every fourth does not rotate, and its queries
    grow with the position.

    The weights of experts multiply what goes into them.  Sizes of the chunks and the growth stand in no
    file (llama.cpp's src/models/llama4.cpp).
    """

    models = "Llama 4 Scout and Maverick (text)"
    neox = False
    gating, normalized, shared_size = "sigmoid", False, "count"
    chunk: ClassVar[int] = 8192
    growth: ClassVar[float] = 0.1
    many_experts: ClassVar[int] = 128
    """With so many, as in Maverick, heads are not normed."""

    rope_base_local: float
    mixture_step: int
    """Every so many layers one is a mixture."""

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        window = cls.chunk if keys.whole("attention.sliding_window", cls.chunk, 0) else 0
        base = keys.real("rope.freq_base", 10000.0, low=1e-3)
        return super().read(
            keys,
            window=window,
            rope_base_local=keys.real("rope.freq_base_swa", base, low=1e-3),
            mixture_step=keys.whole("interleave_moe_layer_step", low=0, high=MAX_LAYERS),
            **own,
        )

    @classmethod
    def read_shared_ff(cls, keys: Keys, n_expert_ff: int) -> int:
        return n_expert_ff

    def states(self) -> list[State]:
        return [
            KV(self.n_kv_heads, self.head_dim, self.value_dim, self.window_of(i), chunked=self.local[i])
            for i in self.layers
        ]

    def is_dense(self, w: Weights, layer: int) -> bool:
        return not self.mixture_step or (layer + 1) % self.mixture_step != 0

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        factors = self.factors(b, w)
        whole = self.rope(factors)
        local = Rope.of(self.n_rot, self.rope_base_local, self.neox, self.rope_scaling, factors)
        rotated = [local if is_local else whole for is_local in self.local]
        return [NOPE if self.window and layer % 4 == 3 else rotated[layer] for layer in self.layers]

    def scores(self, b: Ops, w: Weights, layer: int) -> dict[str, Any]:
        if not self.window or layer % 4 != 3:
            return {}
        passed = (np.arange(b.n_ctx) + 1) // self.chunk
        return {"position_scale": (1.0 + self.growth * np.log(passed + 1.0)).astype(np.float32)}

    def attend(
        self,
        b: Ops,
        w: Weights,
        qkv: tuple[Value, Value, Value],
        layer: int,
        state: StateHandle,
        rope: Rope,
        **scores: Any,
    ) -> Value:
        """Heads that rotate are normed after the rotation, without weights."""
        if rope is NOPE or self.n_experts == self.many_experts:
            return super().attend(b, w, qkv, layer, state, rope, **scores)
        q, k, v = self.rotated(b, w, qkv, layer, rope, 1.0, None)
        ones = w.ones(self.head_dim)
        q = b.head_rms_norm(q, ones, self.heads(layer), self.norm_eps)
        k = b.head_rms_norm(k, ones, self.kv_heads(layer), self.norm_eps)
        return super().attend(b, w, (q, k, v), layer, state, NOPE, **scores)

    def routed(self, b: Ops, w: Weights, x: Value, layer: int) -> Value:
        choice = self.chosen(b, w, self.router_logits(b, w, x, layer), layer)
        return b.mix(self.experts(b, w, b.spread(x, choice), choice, layer), choice, weighted=False)
