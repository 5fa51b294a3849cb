"""Latent attention over chosen keys (DeepSeek V3.2, arXiv:2512.02556): an indexer scores the keys for each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from llmgen.model.keys import MAX_CONTEXT, MAX_HEADS, Keys
from llmgen.model.latent import LatentAttention
from llmgen.model.ops import ChosenKeys, Ops, StateHandle, Value
from llmgen.model.rope import Rope
from llmgen.model.states import KV, State
from llmgen.model.weights import Weights


@dataclass
class IndexedStates:
    """The states of one layer, and what was chosen last in this pass."""

    latent: StateHandle
    keys: StateHandle | None
    """Of the indexer, in layers that have one."""
    chosen: list[ChosenKeys]


@dataclass(frozen=True, kw_only=True)
class Indexed(LatentAttention):
    """Layers choose the keys that a token sees, by scores of an indexer with keys of its own.

    In a context of no more tokens than it chooses the indexer has no effect, and is not run; nor has it in
    layers with a window. llama.cpp turns the indexer's queries and keys by a Hadamard matrix, which leaves
    their products as they are.
    """

    indexer_neox: ClassVar[bool] = True

    n_chosen: int
    n_indexer_heads: int
    indexer_dim: int
    indexer_eps: float
    has_indexer: tuple[bool, ...]
    """For each layer; the others see what the last one before them has chosen."""

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        model = super().read(
            keys,
            n_chosen=keys.whole("attention.indexer.top_k", high=MAX_CONTEXT),
            n_indexer_heads=keys.whole("attention.indexer.head_count", high=MAX_HEADS),
            indexer_dim=keys.whole("attention.indexer.key_length", high=MAX_HEADS),
            **own,
        )
        if not model.nope_dim:
            raise keys.fail(
                "rope.dimension_count", model.n_rot, f"fewer than a key's {model.head_dim} values"
            )
        if model.n_rot > model.indexer_dim:
            raise keys.fail(
                "attention.indexer.key_length", model.indexer_dim, f"at least {model.n_rot} values"
            )
        return model

    def states(self) -> list[State]:
        indexers = [KV(1, self.indexer_dim, 0) for i in self.layers if self.has_indexer[i]]
        return [*super().states(), *indexers]

    def forward(self, b: Ops, w: Weights, states: Sequence[StateHandle]) -> None:
        chosen: list[ChosenKeys] = []
        keys = iter(states[self.n_layers :])
        indexed = [
            IndexedStates(states[i], next(keys) if self.has_indexer[i] else None, chosen) for i in self.layers
        ]
        super().forward(b, w, indexed)

    def found(
        self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope, **seen: Any
    ) -> Value:
        if b.n_ctx <= self.n_chosen or state.keys is None:
            for part in ("attn_q_b", "attn_k", "k_norm", "k_norm.bias", "proj"):
                w.skip(f"blk.{layer}.indexer.{part}")
        if b.n_ctx <= self.n_chosen or self.window_of(layer):
            return super().found(b, w, x, layer, state.latent, rope)
        if state.keys is not None:
            state.chosen[:] = [self.chosen_keys(b, w, x, layer, state.keys, rope)]
        return super().found(b, w, x, layer, state.latent, rope, chosen=state.chosen[0])

    def chosen_keys(
        self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope
    ) -> ChosenKeys:
        """What the indexer chooses; the first values of its heads are rotated."""
        name, n = f"blk.{layer}.indexer.", self.n_indexer_heads
        rope = replace(rope, neox=self.indexer_neox)
        key = self.project(b, w, x, f"{name}attn_k", self.indexer_dim)
        norm, bias = (w.vector(f"{name}k_norm{end}", self.indexer_dim) for end in ("", ".bias"))
        b.store(b.rope(b.layer_norm(key, norm, bias, self.indexer_eps), 1, rope), None, state)
        latent = self.query_latent(b, w, x, layer)
        q = b.rope(self.project(b, w, latent, f"{name}attn_q_b", n * self.indexer_dim), n, rope)
        weights = self.project(b, w, x, f"{name}proj", n)
        weights = b.scale(weights, float((self.indexer_dim * n) ** -0.5))
        return b.choose_keys(q, weights, state, n, self.n_chosen)
