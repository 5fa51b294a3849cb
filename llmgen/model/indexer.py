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
    indexer_rotates_last: ClassVar[bool] = False
    """Whether the last values of an indexer's head are rotated, not the first."""
    may_see_all: ClassVar[bool] = False
    """Whether a file may have no indexer."""

    n_chosen: int
    """Keys that a token sees; 0: all, and no layer has an indexer."""
    n_indexer_heads: int
    indexer_dim: int
    indexer_eps: float
    has_indexer: tuple[bool, ...]
    """For each layer; the others see what the last one before them has chosen."""

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        least, n_heads, dim = (0 if cls.may_see_all else 1), 0, 0
        n_chosen = keys.whole("attention.indexer.top_k", 0 if cls.may_see_all else None, least, MAX_CONTEXT)
        if n_chosen:
            n_heads = keys.whole("attention.indexer.head_count", high=MAX_HEADS)
            dim = keys.whole("attention.indexer.key_length", high=MAX_HEADS)
        model = super().read(keys, n_chosen=n_chosen, n_indexer_heads=n_heads, indexer_dim=dim, **own)
        if not model.nope_dim:
            raise keys.fail(
                "rope.dimension_count", model.n_rot, f"fewer than a key's {model.head_dim} values"
            )
        if n_chosen and model.n_rot > dim:
            raise keys.fail("attention.indexer.key_length", dim, f"at least {model.n_rot} values")
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
        sees_all = not self.n_chosen or b.n_ctx <= self.n_chosen
        if self.n_chosen and (sees_all or state.keys is None):
            for part in ("attn_q_b", "attn_k", "k_norm", "k_norm.bias", "proj"):
                w.skip(f"blk.{layer}.indexer.{part}")
        if sees_all or self.window_of(layer):
            return super().found(b, w, x, layer, state.latent, rope)
        if state.keys is not None:
            state.chosen[:] = [self.chosen_keys(b, w, x, layer, state.keys, rope)]
        return super().found(b, w, x, layer, state.latent, rope, chosen=state.chosen[0])

    def chosen_keys(
        self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope
    ) -> ChosenKeys:
        """What the indexer chooses."""
        name, n = f"blk.{layer}.indexer.", self.n_indexer_heads
        first = self.indexer_dim - self.n_rot if self.indexer_rotates_last else 0
        rope = replace(rope, neox=self.indexer_neox, first=first)
        key = self.project(b, w, x, f"{name}attn_k", self.indexer_dim)
        norm, bias = (w.vector(f"{name}k_norm{end}", self.indexer_dim) for end in ("", ".bias"))
        b.store(b.rope(b.layer_norm(key, norm, bias, self.indexer_eps), 1, rope), None, state)
        latent = self.query_latent(b, w, x, layer)
        q = b.rope(self.project(b, w, latent, f"{name}attn_q_b", n * self.indexer_dim), n, rope)
        weights = self.project(b, w, x, f"{name}proj", n)
        weights = b.scale(weights, float((self.indexer_dim * n) ** -0.5))
        return b.choose_keys(q, weights, state, n, self.n_chosen)


def indexer_layers(keys: Keys, n_layers: int, default: tuple[bool, ...]) -> tuple[bool, ...]:
    """For each layer whether it has an indexer, as the file says; the first must have one."""
    key, found = "attention.indexer.types", default
    if keys.get(key) is not None:
        found = tuple(kind != 0 for kind in keys.per_layer(key, n_layers, high=1))
    if not any(found[:1]):
        raise keys.refuse(key, "a first layer with an indexer of its own")
    return found
