"""Models whose attention is gated, and models whose norms have no weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from llmgen.model.archs import architecture
from llmgen.model.blocks import PreNorm, Sandwich
from llmgen.model.keys import MAX_LAYERS, Keys
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.positions import NormedAfterRope, Windowed
from llmgen.model.rope import NOPE, Rope
from llmgen.model.weights import Weights


class GatedAttention(PreNorm):
    """The attention's output is multiplied by the sigmoid of a projection of the layer's input."""

    def attended(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        qkv = self.projections(b, w, x, layer)
        gate = self.project(b, w, x, f"blk.{layer}.attn_gate", self.gates(w, layer))
        a = self.attend(b, w, qkv, layer, state, rope, **self.scores(b, w, layer))
        return self.attention_output(b, w, self.gated_heads(b, a, gate), layer)

    def gated_heads(self, b: Ops, a: Value, gate: Value) -> Value:
        """The attention's output, gated."""
        return b.gate_heads(a, gate) if gate.n < a.n else b.gated(gate, a, "sigmoid")

    def gates(self, w: Weights, layer: int) -> int:
        """How many gates there are: one for each value, or one for each head."""
        return self.heads(layer) * self.value_dim


@architecture("muse-glimmer")
@dataclass(frozen=True, kw_only=True)
class MuseGlimmer(GatedAttention, Windowed, Sandwich):
    """Normed embeddings and heads, gated attention; the layers with full attention do not rotate."""

    models = "Muse Glimmer"
    neox, normed_heads = False, True
    window_default = None

    logit_scale: float
    final_logit_softcapping: float
    rope_base_local: float

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        base = keys.real("rope.freq_base", 10000.0, low=1e-3)
        return super().read(
            keys,
            logit_scale=keys.real("logit_scale"),
            final_logit_softcapping=keys.real("final_logit_softcapping", 0.0),
            rope_base_local=keys.real("rope.freq_base_swa", base, low=1e-3),
            **own,
        )

    def embedded(self, b: Ops, w: Weights) -> Value:
        return self.weightless_norm(b, w, super().embedded(b, w))

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        scaling = self.rope_scaling.unstretched()
        local = Rope.of(self.n_rot, self.rope_base_local, self.neox, scaling)
        return [local if is_local else NOPE for is_local in self.local]

    def post_norm(self, b: Ops, w: Weights, x: Value, name: str) -> Value:
        return b.rms_norm(x, w.vector(name, x.n), 1e-8)

    def finish(self, b: Ops, w: Weights, x: Value) -> None:
        b.logits(b.scale(x, self.logit_scale), self.output_matrix(w), cap=self.final_logit_softcapping)


@architecture("spark2_5")
@dataclass(frozen=True, kw_only=True)
class Spark25(GatedAttention, Windowed):
    """Llama with rotary positions on halves, sliding windows, gelu, and a gate for each head."""

    models = "Spark 2.5"
    activation = "gelu"
    window_default = None

    rope_base_local: float

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        key = "attention.sliding_window_pattern"
        if not isinstance(keys.get(key), np.ndarray):
            raise keys.refuse(key, "a flag for each layer")
        base = keys.real("rope.freq_base", 10000.0, low=1e-3)
        return super().read(keys, rope_base_local=keys.real("rope.freq_base_swa", base, low=1e-3), **own)

    def gates(self, w: Weights, layer: int) -> int:
        return self.heads(layer)

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        whole = self.rope()
        local = Rope.of(self.n_rot, self.rope_base_local, self.neox, self.rope_scaling)
        return [local if is_local else whole for is_local in self.local]


@architecture("talkie")
@dataclass(frozen=True, kw_only=True)
class Talkie(NormedAfterRope, PreNorm):
    """Norms without weights; heads are normed after the rotation, the queries' times a number for each head.

    After each layer the normed embedding is added again, times a number of the layer's own.
    """

    models = "Talkie"

    logit_scale: float

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        return super().read(keys, logit_scale=keys.real("logit_scale"), **own)

    def norm(self, b: Ops, w: Weights, x: Value, name: str) -> Value:
        return self.weightless_norm(b, w, x)

    def norm_heads(self, b: Ops, w: Weights, q: Value, k: Value, layer: int) -> tuple[Value, Value]:
        name, n_heads = f"blk.{layer}.attn_q_norm", self.heads(layer)
        scales = w.vector(name, 1, n_heads).values.reshape(n_heads, 1)
        rows = w.derived(f"{name} of each value", lambda: np.repeat(scales, self.head_dim, axis=1))
        q = b.head_rms_norm(q, rows, n_heads, self.norm_eps)
        return q, b.head_rms_norm(k, w.ones(self.head_dim), self.kv_heads(layer), self.norm_eps)

    def forward(self, b: Ops, w: Weights, states: Sequence[StateHandle]) -> None:
        ropes = self.ropes(b, w)
        x = embedded = self.weightless_norm(b, w, self.embedded(b, w))
        for layer in self.layers:
            x = self.block(b, w, x, layer, states[layer], ropes[layer])
            scale = float(w.values(f"blk.{layer}.layer_output_scale", 1)[0])
            x = b.add(x, b.scale(embedded, scale))
        self.finish(b, w, self.weightless_norm(b, w, x))

    def finish(self, b: Ops, w: Weights, x: Value) -> None:
        b.logits(b.scale(x, self.logit_scale), self.output_matrix(w))


@architecture("hrm_text")
@dataclass(frozen=True, kw_only=True)
class HRMText(GatedAttention):
    """Two stacks of layers in turns, a low one and a high one, each fed with the sum of both (arXiv:2506.21734).

    Every pass has keys and values of its own.
    """

    models = "HRM Text"

    per_stack: int
    """Layers of a stack."""
    high_cycles: int
    low_cycles: int
    """Passes of the low stack before one of the high stack."""
    embedding_scale: float

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        if keys.flag("hrm.prefix_lm", False):
            raise keys.refuse("hrm.prefix_lm", "false for a model that writes text token by token")
        return super().read(
            keys,
            per_stack=keys.whole("hrm.layers_per_stack", high=MAX_LAYERS),
            high_cycles=keys.whole("hrm.h_cycles", high=64),
            low_cycles=keys.whole("hrm.l_cycles", high=64),
            embedding_scale=keys.real("embedding_scale", 0.0),
            **own,
        )

    @property
    def layers(self) -> range:
        return range(self.per_stack * self.high_cycles * (self.low_cycles + 1))

    def embedded(self, b: Ops, w: Weights) -> Value:
        return b.embed(self.embedding(w), self.embedding_scale or 1.0)

    def norm(self, b: Ops, w: Weights, x: Value, name: str) -> Value:
        return self.weightless_norm(b, w, x)

    def forward(self, b: Ops, w: Weights, states: Sequence[StateHandle]) -> None:
        rope, slots = self.rope(), iter(states)

        def stack(x: Value, first: int) -> Value:
            for layer in range(first, first + self.per_stack):
                x = self.block(b, w, x, layer, next(slots), rope)
            return self.weightless_norm(b, w, x)

        high, low = self.embedded(b, w), w.vector("hrm.z_l_init", self.n_embd)
        for _ in range(self.high_cycles):
            for _ in range(self.low_cycles):
                low = stack(b.add(high, low), 0)
            high = stack(b.add(high, low), self.per_stack)
        self.finish(b, w, high)
