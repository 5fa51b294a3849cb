"""MiniMax M3 (llama.cpp's src/models/minimax-m3.cpp)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from llmgen.model.archs import architecture
from llmgen.model.keys import MAX_CONTEXT, MAX_HEADS, Keys
from llmgen.model.mixtures import Mixture
from llmgen.model.ops import ChosenBlocks, Ops, StateHandle, Value
from llmgen.model.rope import Rope
from llmgen.model.states import KV, State
from llmgen.model.weights import Weights


@architecture("minimax-m3")
@dataclass(frozen=True, kw_only=True)
class MiniMaxM3(Mixture):
    """Normed heads, of which a part rotates; experts and a shared expert behind dense layers; sparse attention.

    Behind the dense layers each key/value head attends to blocks of keys, which an indexer with keys of its own
    chooses for it. In a context of no more blocks than it chooses the indexer has no effect, and is not run.
    """

    models = "MiniMax M3 428B A23B"
    normed_heads, activation, leading_dense = True, "swiglu_oai", True
    gating, normalized, scaled, shared_size = None, None, True, "count"

    n_chosen: int
    """Blocks that a token sees."""
    block_size: int
    n_local: int
    """How many of these are always the last ones."""
    indexer_dim: int

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        name = "attention.indexer."
        model = super().read(
            keys,
            n_chosen=keys.whole(f"{name}top_k", high=MAX_CONTEXT),
            block_size=keys.whole(f"{name}block_size", high=MAX_CONTEXT),
            n_local=keys.whole(f"{name}local_blocks", low=0, high=MAX_CONTEXT),
            indexer_dim=keys.whole(f"{name}key_length", high=MAX_HEADS),
            **own,
        )
        if keys.whole(f"{name}head_count", high=MAX_HEADS) != model.n_kv_heads:
            raise keys.refuse(f"{name}head_count", f"one for each of the {model.n_kv_heads} key/value heads")
        if model.indexer_dim < model.n_rot:
            raise keys.refuse(f"{name}key_length", f"at least the {model.n_rot} values that rotate")
        return model

    @property
    def sparse_layers(self) -> range:
        """The layers with an indexer."""
        return range(min(self.n_dense_layers, self.n_layers), self.n_layers)

    def states(self) -> list[State]:
        return [*super().states(), *(KV(1, self.indexer_dim, 0) for _ in self.sparse_layers)]

    def forward(self, b: Ops, w: Weights, states: Sequence[StateHandle]) -> None:
        indexers = dict(zip(self.sparse_layers, states[self.n_layers :], strict=True))
        super().forward(b, w, [(states[layer], indexers.get(layer)) for layer in self.layers])

    def attended(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        main, indexer = state
        chosen = None
        if b.n_ctx > self.n_chosen * self.block_size and indexer is not None:
            chosen = self.chosen_blocks(b, w, x, layer, indexer, rope)
        elif indexer is not None:
            for part in ("q_proj", "k_proj", "q_norm", "k_norm"):
                w.skip(f"blk.{layer}.indexer.{part}")
        qkv = self.projections(b, w, x, layer)
        return self.attention(b, w, qkv, layer, main, rope, chosen=chosen)

    def chosen_blocks(
        self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope
    ) -> ChosenBlocks:
        """What the indexer chooses for each key/value head."""
        key = self.indexer_part(b, w, x, layer, "k", 1, rope)
        b.store(key, None, state)
        q = self.indexer_part(b, w, x, layer, "q", self.n_kv_heads, rope)
        return b.choose_blocks(q, state, self.n_kv_heads, self.block_size, self.n_chosen, self.n_local)

    def indexer_part(
        self, b: Ops, w: Weights, x: Value, layer: int, part: str, n_heads: int, rope: Rope
    ) -> Value:
        """Queries or keys of the indexer, normed and rotated: [n_heads * indexer_dim]."""
        name = f"blk.{layer}.indexer.{part}_"
        y = self.project(b, w, x, f"{name}proj", n_heads * self.indexer_dim)
        norm = w.vector(f"{name}norm", self.indexer_dim)
        return b.rope(b.head_rms_norm(y, norm, n_heads, self.norm_eps), n_heads, rope)
