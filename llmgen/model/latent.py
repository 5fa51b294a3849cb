"""Multi-head latent attention (DeepSeek V2, arXiv:2405.04434, section 2.1).

The cache holds what keys and values are projected from, and one rotated key part for all heads.
The projections are absorbed, as llama.cpp does (src/models/deepseek2.cpp): a query goes
through its head's key projection and is compared with the contents themselves; their weighted
sum goes through the head's value projection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from llmgen.model.blocks import PreNorm
from llmgen.model.keys import Keys
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.rope import NOPE, Rope
from llmgen.model.states import Latent, State
from llmgen.model.weights import Matrix, Weights


@dataclass(frozen=True, kw_only=True)
class LatentAttention(PreNorm):
    """``head_dim`` and ``value_dim`` are those of the projected heads; the last n_rot values of a key are rotated."""

    q_lora_rank: int
    """Values that queries are projected from, in files whose queries do not come from the layer's input directly."""
    kv_lora_rank: int
    """Values that keys and values are projected from."""

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        rank = keys.whole("attention.kv_lora_rank")
        key, value = "attention.key_length_mla", "attention.value_length_mla"
        if keys.get(key) is not None:  # then key_length and value_length are those of the cache
            own.setdefault("head_dim", keys.whole(key))
            own.setdefault("value_dim", keys.whole(value))
        own.setdefault("q_lora_rank", keys.whole("attention.q_lora_rank", 0, low=0))
        model = super().read(keys, kv_lora_rank=rank, **own)
        if model.n_rot > model.head_dim:
            raise keys.fail("rope.dimension_count", model.n_rot, f"at most a key's {model.head_dim} values")
        return model

    @property
    def nope_dim(self) -> int:
        """Values of a key that are not rotated."""
        return self.head_dim - self.n_rot

    def kv_state(self, layer: int) -> State:
        return Latent(self.kv_lora_rank, self.n_rot, self.window_of(layer))

    def score_scale(self) -> float:
        """What scores are multiplied by."""
        return float(self.head_dim**-0.5)

    def query_scale(self, b: Ops) -> np.ndarray | None:
        """One more factor for the queries of each position, float32 [n_ctx]."""
        return None

    def attended(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        return self.attention_output(b, w, self.found(b, w, x, layer, state, rope), layer)

    def found(
        self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope, **seen: Any
    ) -> Value:
        """The attention's output: [n_heads * value_dim]; seen: the keys that count, as ``attend_latent`` takes it."""
        n_heads = self.heads(layer)
        self.remember(b, w, x, layer, state, rope)
        q = self.queries(b, w, x, layer)
        q = b.rope(q, n_heads, NOPE, self.score_scale(), self.query_scale(b))
        position = None
        if self.n_rot:
            position = b.rope(b.head_part(q, n_heads, self.nope_dim, self.n_rot), n_heads, rope)
        if self.nope_dim:
            content = self.absorbed(b, w, b.head_part(q, n_heads, 0, self.nope_dim), layer)
            a = b.attend_latent(content, position, state, n_heads, **self.scores(b, w, layer), **seen)
        else:
            a = b.attend(position, state, n_heads, **self.scores(b, w, layer))
        return b.linear_heads(a, self.value_matrices(w, layer))

    def queries(self, b: Ops, w: Weights, x: Value, layer: int) -> Value:
        """The queries of all heads, not yet rotated: [n_heads * head_dim]."""
        name, n = f"blk.{layer}.attn_q", self.heads(layer) * self.head_dim
        if w.has(name):
            return self.project(b, w, x, name, n)
        return self.project(b, w, self.query_latent(b, w, x, layer), f"{name}_b", n)

    def query_latent(self, b: Ops, w: Weights, x: Value, layer: int) -> Value:
        """What queries are projected from: [q_lora_rank]."""
        name = f"blk.{layer}.attn_q_a"
        return self.norm(b, w, self.project(b, w, x, name, self.q_lora_rank), f"{name}_norm")

    def remember(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> None:
        """Append both parts of a token to the cache, the content normed, the position part rotated."""
        name = f"blk.{layer}.attn_kv_a"
        both = w.matrix(f"{name}_mqa", self.kv_lora_rank + self.n_rot, self.n_embd)
        content = self.norm(b, w, b.linear(x, both.rows(0, self.kv_lora_rank)), f"{name}_norm")
        position = None
        if self.n_rot:
            position = self.key_position(b, w, b.linear(x, both.rows(self.kv_lora_rank, self.n_rot)), layer)
            position = b.rope(position, 1, rope)
        b.store(position, content, state)

    def key_position(self, b: Ops, w: Weights, position: Value, layer: int) -> Value:
        """The position part of a key as it is rotated: [n_rot]."""
        return position

    def absorbed(self, b: Ops, w: Weights, q: Value, layer: int) -> Value:
        """The parts of queries that are not rotated, projected to the content: [n_heads * kv_lora_rank]."""
        name, n_heads = f"blk.{layer}.attn_k_b", self.heads(layer)
        if w.has(name):
            return b.linear_heads(q, w.head_matrices(name, n_heads, self.kv_lora_rank, self.nope_dim))
        return b.linear_heads(
            q, [m.rows(0, self.nope_dim) for m in self.joint_matrices(w, layer)], turned=True
        )

    def value_matrices(self, w: Weights, layer: int) -> Sequence[Matrix]:
        """Each head's projection of the content to its value: [value_dim, kv_lora_rank]."""
        name, n_heads = f"blk.{layer}.attn_v_b", self.heads(layer)
        if w.has(name):
            return w.head_matrices(name, n_heads, self.value_dim, self.kv_lora_rank)
        return [m.rows(self.nope_dim, self.value_dim) for m in self.joint_matrices(w, layer)]

    def joint_matrices(self, w: Weights, layer: int) -> Sequence[Matrix]:
        """The matrix of each head in files with one matrix for keys and values, the rows of its key first."""
        n, n_heads = self.nope_dim + self.value_dim, self.heads(layer)
        whole = w.matrix(f"blk.{layer}.attn_kv_b", n_heads * n, self.kv_lora_rank)
        return [whole.rows(head * n, n) for head in range(n_heads)]
