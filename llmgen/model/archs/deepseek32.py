"""DeepSeek V3.2 (arXiv:2512.02556) and GLM 5: each token attends to the keys that an indexer has chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from llmgen.model.archs import architecture
from llmgen.model.archs.deepseek2 import DeepSeek2
from llmgen.model.keys import MAX_CONTEXT, MAX_HEADS, Keys
from llmgen.model.ops import ChosenKeys, Ops, StateHandle, Value
from llmgen.model.rope import Rope
from llmgen.model.states import KV, State
from llmgen.model.weights import Weights


@dataclass
class Indexed:
    """The states of one layer, and what was chosen last in this pass."""

    latent: StateHandle
    keys: StateHandle | None
    """Of the indexer, in layers that have one."""
    chosen: list[ChosenKeys]


@architecture("deepseek32")
@dataclass(frozen=True, kw_only=True)
class DeepSeek32(DeepSeek2):
    """DeepSeek V3 whose layers choose the keys that a token sees, by scores of an indexer with keys of its own.

    In a context of no more tokens than it chooses the indexer has no effect, and is not run. llama.cpp
    turns the indexer's queries and keys by a Hadamard matrix, which leaves their products as they are.
    """

    models = "DeepSeek V3.2"
    cancels_magnitude = False
    indexer_neox: ClassVar[bool] = True

    n_chosen: int
    n_indexer_heads: int
    indexer_dim: int
    indexer_eps: float
    has_indexer: tuple[bool, ...]
    """For each layer; the others see what the last one before them has chosen."""

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        own.setdefault("indexer_eps", keys.real("attention.layer_norm_epsilon", 0.0, high=1.0))
        own.setdefault("has_indexer", (True,) * keys.whole("block_count"))
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
            Indexed(states[i], next(keys) if self.has_indexer[i] else None, chosen) for i in self.layers
        ]
        super().forward(b, w, indexed)

    def found(
        self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope, **seen: Any
    ) -> Value:
        if b.n_ctx <= self.n_chosen or state.keys is None:
            for part in ("attn_q_b", "attn_k", "k_norm", "k_norm.bias", "proj"):
                w.skip(f"blk.{layer}.indexer.{part}")
        if b.n_ctx <= self.n_chosen:
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


@architecture("glm-dsa")
@dataclass(frozen=True, kw_only=True)
class GLM5(DeepSeek32):
    """DeepSeek V3.2 whose indexer rotates neighbouring pairs; in long models some layers share a choice."""

    models = "GLM-5, 5.1 and 5.2"
    gating_default = "sigmoid"
    indexer_neox = False

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        n_layers = keys.whole("block_count") - keys.whole("nextn_predict_layers", 0, low=0)
        key = "attention.indexer.types"
        if keys.get(key) is not None:
            has_indexer = tuple(kind != 0 for kind in keys.per_layer(key, n_layers, high=1))
        elif keys.whole("context_length", high=MAX_CONTEXT) < 1 << 20:
            has_indexer = (True,) * n_layers
        else:  # as in GLM 5.2, whose first files do not say so
            has_indexer = tuple(layer < 2 or layer % 4 == 2 for layer in range(n_layers))
        if not any(has_indexer[:1]):
            raise keys.refuse(key, "a first layer with an indexer of its own")
        return super().read(keys, indexer_eps=1e-6, log_multiplier=0.0, has_indexer=has_indexer, **own)

    @classmethod
    def read_scores(cls, keys: Keys) -> Any:
        return super(DeepSeek2, cls).read_scores(keys)
