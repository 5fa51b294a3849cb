"""What Gemma 3n and Gemma 4 have in common: layers with inputs of their own, and layers that share keys and values.

The formulas are those of llama.cpp's src/models/gemma3n.cpp and gemma4.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from llmgen.model.keys import Keys
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.positions import Windowed
from llmgen.model.rope import Rope
from llmgen.model.states import State
from llmgen.model.weights import Weights


@dataclass(frozen=True, kw_only=True)
class SharedKeys(Windowed):
    """The last layers have no keys and values of their own: they see those of the last layer of their kind that has.

    Values have a norm without weights, and scores are not scaled.
    """

    own_keys: int
    """How many layers have keys and values."""

    def check_sources(self, keys: Keys) -> None:
        """Refuse a file in which there is no layer whose keys and values another could see."""
        last = self.local[max(self.own_keys - 2, 0) : self.own_keys]
        if self.own_keys < self.n_layers and last != (True, False):
            raise keys.fail(
                "attention.sliding_window_pattern",
                "such that layers would share keys and values of another kind",
                f"a layer with the window and one without before layer {self.own_keys}",
            )
        for layer in self.layers[self.own_keys :]:
            found, shared = self.kv_heads(layer), self.kv_heads(self.source(layer))
            if found != shared:
                raise keys.fail(
                    "attention.head_count_kv", found, f"{shared} in layer {layer}, which shares them"
                )

    def source(self, layer: int) -> int:
        """The layer whose keys and values a layer sees."""
        if layer < self.own_keys:
            return layer
        return self.own_keys - (2 if self.local[layer] else 1)

    def states(self) -> list[State]:
        return [self.kv_state(layer) for layer in self.layers[: self.own_keys]]

    def of_layers(self, states: Sequence[StateHandle]) -> list[StateHandle]:
        """The state that each layer sees."""
        return [states[self.source(layer)] for layer in self.layers]

    def attended(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        if layer < self.own_keys:
            return self.attention(b, w, self.projections(b, w, x, layer), layer, state, rope, scale=1.0)
        q = b.rope(self.queries(b, w, x, layer), self.heads(layer), rope)
        return self.attention_output(b, w, b.attend(q, state, self.heads(layer)), layer)

    def projections(self, b: Ops, w: Weights, x: Value, layer: int) -> tuple[Value, Value, Value]:
        q, k, v = self.qkv(b, w, x, layer)
        v = b.head_rms_norm(v, w.ones(self.value_dim), self.kv_heads(layer), self.norm_eps)
        return *self.norm_heads(b, w, q, k, layer), v

    def queries(self, b: Ops, w: Weights, x: Value, layer: int) -> Value:
        """The normed queries of a layer that shares keys and values; what a file has for its own is not used."""
        name, n = f"blk.{layer}.attn_", self.heads(layer) * self.head_dim
        for part in ("k", "v", "k_norm", "q.bias", "k.bias", "v.bias", "qkv.bias"):
            w.skip(name + part)
        if w.has(f"{name}qkv"):
            n_kv = self.kv_heads(layer) * (self.head_dim + self.value_dim)
            matrix = w.matrix(f"{name}qkv", n + n_kv, x.n).rows(0, n)
        else:
            matrix = w.matrix(f"{name}q", n, x.n)
        q = b.linear(x, matrix)
        return b.head_rms_norm(q, w.vector(f"{name}q_norm", self.head_dim), self.heads(layer), self.norm_eps)


@dataclass(frozen=True, kw_only=True)
class LayerInputs(SharedKeys):
    """Each layer gets a few values besides, which the token has in a table, and which depend on its embedding."""

    activation: ClassVar[str] = "gelu"

    n_layer_input: int
    """Values of each layer's input; 0: there are none."""
    rope_base_local: float
    final_logit_softcapping: float

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        base = keys.real("rope.freq_base_swa", 10000.0, low=1e-3)
        return super().read(keys, rope_base_local=base, **own)

    def embedded(self, b: Ops, w: Weights) -> Value:
        return b.embed(self.embedding(w), scale=math.sqrt(self.n_embd))

    def layer_inputs(self, b: Ops, w: Weights, x: Value) -> Value | None:
        """The inputs of all layers side by side, from the embedding: [n_layers * n_layer_input]."""
        n = self.n_layers * self.n_layer_input
        if not n:
            return None
        table = w.matrix("per_layer_token_embd", self.vocab_size, n)
        projected = b.scale(self.project(b, w, x, "per_layer_model_proj", n), self.n_embd**-0.5)
        norm = w.vector("per_layer_proj_norm", self.n_layer_input)
        projected = b.head_rms_norm(projected, norm, self.n_layers, self.norm_eps)
        return b.scale(b.add(b.embed(table, scale=math.sqrt(self.n_layer_input)), projected), math.sqrt(0.5))

    def from_input(self, b: Ops, w: Weights, x: Value, layer: int, inputs: Value) -> Value:
        """A layer's input, gated by x: [n_embd]."""
        name, n = f"blk.{layer}.", self.n_layer_input
        gate = self.project(b, w, x, f"{name}inp_gate", n)
        own = b.head_part(inputs, 1, layer * n, n)
        y = self.project(b, w, b.gated(gate, own, self.activation), f"{name}proj", self.n_embd)
        return self.norm(b, w, y, f"{name}post_norm")

    def local_rope(self, n_rot: int) -> Rope:
        """The rotation of layers with the window, which are not stretched."""
        return Rope.of(n_rot, self.rope_base_local, self.neox, self.rope_scaling.unstretched())

    def finish(self, b: Ops, w: Weights, x: Value) -> None:
        b.logits(x, self.output_matrix(w), cap=self.final_logit_softcapping)
