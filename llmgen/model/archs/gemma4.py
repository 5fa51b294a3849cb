"""Gemma 4 (llama.cpp's src/models/gemma4.cpp)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from llmgen.model.archs import architecture
from llmgen.model.blocks import PerLayer
from llmgen.model.keys import MAX_CONTEXT, MAX_FEED_FORWARD, MAX_HEADS, MAX_LAYERS, Keys
from llmgen.model.layer_inputs import LayerInputs
from llmgen.model.mixtures import Mixture
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.rope import Rope
from llmgen.model.states import State
from llmgen.model.weights import Weights


@architecture("gemma4")
@dataclass(frozen=True, kw_only=True)
class Gemma4(PerLayer, LayerInputs, Mixture):
    """Gemma 3 whose last layers share keys and values, whose layers may have inputs of their own, and whose heads
    have other sizes in layers with the window; beside the feed-forward there may be experts."""

    models = "Gemma 4 E2B, E4B, 31B and 26B A4B (text)"
    own_heads, may_be_dense = True, True

    local_head_dim: int
    """``head_dim`` and ``value_dim`` of layers with the window."""
    n_rot_local: int

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        n_layers = keys.whole("block_count", high=MAX_LAYERS)
        if keys.whole("nextn_predict_layers", 0, 0, MAX_LAYERS):
            raise keys.refuse("nextn_predict_layers", "0")
        pattern = keys.per_layer("attention.sliding_window_pattern", n_layers, high=1)
        n_rot = keys.whole("rope.dimension_count", 0, 0, MAX_HEADS) or keys.whole("attention.key_length")
        model = super().read(
            keys,
            window=keys.whole("attention.sliding_window", high=MAX_CONTEXT),
            local=tuple(flag != 0 for flag in pattern),
            own_keys=n_layers - keys.whole("attention.shared_kv_layers", 0, 0, n_layers - 1),
            n_layer_input=keys.whole("embedding_length_per_layer_input", low=0),
            final_logit_softcapping=keys.real("final_logit_softcapping", 30.0),
            local_head_dim=keys.whole("attention.key_length_swa", high=MAX_HEADS),
            n_rot_local=keys.whole("rope.dimension_count_swa", n_rot, 0, MAX_HEADS),
            **own,
        )
        model.check_sources(keys)
        model.check_heads(keys)
        return model

    @classmethod
    def read_expert_ff(cls, keys: Keys, n_used: int) -> int:
        return keys.whole("expert_feed_forward_length", 0, 0, MAX_FEED_FORWARD)

    def check_heads(self, keys: Keys) -> None:
        """Refuse heads whose values have another size than their keys, or that cannot rotate."""
        for end, n in (("", self.head_dim), ("_swa", self.local_head_dim)):
            if keys.whole(f"attention.value_length{end}", n, high=MAX_HEADS) != n:
                raise keys.refuse(f"attention.value_length{end}", f"{n} as attention.key_length{end}")
        if self.n_rot_local > self.local_head_dim or self.n_rot_local % 2:
            raise keys.refuse(
                "rope.dimension_count_swa", f"an even number up to the head's {self.local_head_dim}"
            )

    def sized(self, layer: int) -> Self:
        """The model with the sizes of a layer's heads."""
        if not self.local[layer]:
            return self
        return replace(self, head_dim=self.local_head_dim, value_dim=self.local_head_dim)

    def kv_state(self, layer: int) -> State:
        return super(Gemma4, self.sized(layer)).kv_state(layer)

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        local, whole = self.local_rope(self.n_rot_local), None
        if not all(self.local):
            divisors = w.values("rope_freqs", self.head_dim // 2)
            whole = self.rope(divisors[: self.n_rot // 2])
        return [local if is_local or whole is None else whole for is_local in self.local]

    def forward(self, b: Ops, w: Weights, states: Sequence[StateHandle]) -> None:
        seen, ropes = self.of_layers(states), self.ropes(b, w)
        x = self.embedded(b, w)
        inputs = self.layer_inputs(b, w, x)
        for layer in self.layers:
            x = self.block(b, w, x, layer, seen[layer], ropes[layer])
            if inputs is not None:
                x = b.add(x, self.from_input(b, w, x, layer, inputs))
            name = f"blk.{layer}.layer_output_scale"
            x = b.scale(x, float(w.values(name, 1)[0])) if w.has(name) else x
        self.finish(b, w, self.outcome(b, w, x))

    def block(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        name = f"blk.{layer}."
        a = self.attended(b, w, self.norm(b, w, x, f"{name}attn_norm"), layer, state, rope)
        x = b.add(x, self.norm(b, w, a, f"{name}post_attention_norm"))
        f = self.feed_forward(b, w, self.norm(b, w, x, f"{name}ffn_norm"), layer, self.activation)
        if w.has(f"{name}ffn_gate_inp"):
            f = b.add(self.norm(b, w, f, f"{name}post_ffw_norm_1"), self.mixed(b, w, x, layer))
        return b.add(x, self.norm(b, w, f, f"{name}post_ffw_norm"))

    def mixed(self, b: Ops, w: Weights, x: Value, layer: int) -> Value:
        """The experts' part of a layer, beside its feed-forward: [n_embd]."""
        name = f"blk.{layer}."
        choice = self.chosen(b, w, self.router_logits(b, w, x, layer), layer)
        h = self.norm(b, w, x, f"{name}pre_ffw_norm_2")
        y = b.mix(self.experts(b, w, h, choice, layer), choice)
        return self.norm(b, w, y, f"{name}post_ffw_norm_2")

    def router_logits(self, b: Ops, w: Weights, x: Value, layer: int) -> Value:
        name = f"blk.{layer}.ffn_gate_inp"
        h = b.scale(self.weightless_norm(b, w, x), 1 / math.sqrt(self.n_embd))
        h = b.multiply(h, w.vector(f"{name}.scale", self.n_embd))
        return b.linear(h, w.matrix(name, self.n_experts, self.n_embd))

    def attended(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        return super(Gemma4, self.sized(layer)).attended(b, w, x, layer, state, rope)

    def projections(self, b: Ops, w: Weights, x: Value, layer: int) -> tuple[Value, Value, Value]:
        name, n_kv = f"blk.{layer}.attn_", self.kv_heads(layer)
        if w.has(f"{name}qkv") or w.has(f"{name}v"):
            return super().projections(b, w, x, layer)
        q = self.project(b, w, x, f"{name}q", self.heads(layer) * self.head_dim)
        k = self.project(b, w, x, f"{name}k", n_kv * self.head_dim)
        v = b.head_part(k, n_kv, 0, self.value_dim)  # a copy, since norms work in place
        v = b.head_rms_norm(v, w.ones(self.value_dim), n_kv, self.norm_eps)
        return *self.norm_heads(b, w, q, k, layer), v
