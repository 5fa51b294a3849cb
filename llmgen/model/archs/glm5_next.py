"""GLM 5 Next of Z.ai (llama.cpp's src/models/glm5-next.cpp)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from llmgen.model.archs import architecture
from llmgen.model.blocks import DraftLayers, PerLayer, PreNorm
from llmgen.model.delta_net import KimiDeltaAttention
from llmgen.model.hybrid import Hybrid
from llmgen.model.hyper_connections import HyperConnections
from llmgen.model.keys import MAX_CONTEXT, MAX_HEADS, MAX_LAYERS, Keys
from llmgen.model.latent import LatentAttention
from llmgen.model.mixtures import ClampedExperts, clamped
from llmgen.model.ops import ChosenKeys, Ops, StateHandle, Value
from llmgen.model.rope import NOPE, Rope
from llmgen.model.states import KV, State, sums
from llmgen.model.weights import Weights

_INDEXER = (".attn_q_b", ".attn_k", ".k_norm", ".k_norm.bias", ".proj", "_compressor_gate", "_compressor_ape")


@architecture("glm5-next")
@dataclass(frozen=True, kw_only=True)
class GLM5Next(DraftLayers, HyperConnections, PerLayer, ClampedExperts, Hybrid, LatentAttention):
    """Residuals of several streams; delta attention where a layer has no key heads, else latent attention without
    positions; clamped experts and a shared expert behind dense layers.

    An indexer chooses the tokens that latent attention sees, by summaries of a few neighbours each; those behind
    the last summary are always seen.  Layers without an indexer see what the last one has chosen.  In a context
    of no more tokens than it chooses the indexer has no effect, and is not run.
    """

    models = "GLM-5.3 Flash"
    leading_dense, shared_size = True, "count"
    gating, gating_default, normalized, scaled = None, "sigmoid", None, True

    mixer: KimiDeltaAttention
    n_chosen: int
    """Tokens that the indexer chooses."""
    pool: int
    """Tokens that it summarizes."""
    n_indexer_heads: int
    indexer_dim: int
    indexer_eps: float
    has_indexer: tuple[bool, ...]
    """For each layer; it counts for those with latent attention."""
    other_clamps: tuple[float, ...]
    """``clamps`` of dense feed-forwards and of the shared expert."""

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        n_layers = keys.whole("block_count", high=MAX_LAYERS)
        n_used = n_layers - keys.whole("nextn_predict_layers", 0, 0, n_layers - 1)
        clamps = keys.per_layer_real("swiglu_clamp_exp", n_layers, 0.0)
        given = keys.get("swiglu_clamp_shexp") is not None
        bound = keys.real("kda.gate_lower_bound", 0.0, low=-1e3, high=0.0)
        mixer = KimiDeltaAttention.read(keys, cls.read_eps(keys), bound, negated=bound != 0)
        indexer = "attention.indexer."
        if not keys.flag(f"{indexer}kpool_select_tail", True):
            raise keys.refuse(f"{indexer}kpool_select_tail", "true")
        model = super().read(
            keys,
            mixer=replace(mixer, unit_eps=1e-6),
            n_chosen=keys.whole(f"{indexer}top_k", high=MAX_CONTEXT),
            pool=keys.whole(f"{indexer}kpool", low=2, high=MAX_CONTEXT),
            n_indexer_heads=keys.whole(f"{indexer}head_count", high=MAX_HEADS),
            indexer_dim=keys.whole(f"{indexer}key_length", high=MAX_HEADS),
            indexer_eps=keys.real("attention.layer_norm_epsilon", 0.0, high=1.0),
            has_indexer=tuple(kind != 0 for kind in keys.per_layer(f"{indexer}types", n_used, 1, high=1)),
            clamps=clamps,
            other_clamps=keys.per_layer_real("swiglu_clamp_shexp", n_layers) if given else clamps,
            **own,
        )
        if model.n_rot:
            raise keys.refuse("rope.dimension_count", "0: latent attention without positions")
        if model.n_chosen % model.pool:
            raise keys.refuse(f"{indexer}top_k", f"a multiple of the {model.pool} tokens of a summary")
        latent = [layer for layer in model.layers if not model.is_recurrent(layer)]
        if latent and not model.has_indexer[latent[0]]:
            raise keys.refuse(f"{indexer}types", f"an indexer in layer {latent[0]}, the first with attention")
        return model

    def layer_states(self, layer: int) -> list[State]:
        own = super().layer_states(layer)
        if self.has_indexer[layer] and not self.is_recurrent(layer):
            own += [KV(1, self.indexer_dim, 0, every=self.pool), sums(self.indexer_dim)]
        return own

    def forward(self, b: Ops, w: Weights, states: Sequence[StateHandle]) -> None:
        slots, ropes, chosen = iter(states), self.ropes(b, w), list[ChosenKeys]()
        x = self.embedded(b, w)
        for layer in self.layers:
            own = [next(slots) for _ in self.layer_states(layer)]
            if not self.is_recurrent(layer):
                own = [(own, chosen)]
            x = self.block(b, w, x, layer, own, ropes[layer])
        self.finish(b, w, self.outcome(b, w, x))

    def outcome(self, b: Ops, w: Weights, x: Value) -> Value:
        n = self.n_streams
        shares = w.derived(f"1 / {n}", lambda: np.full(n, 1 / n, np.float32))
        return PreNorm.outcome(self, b, w, b.blend(x, shares, 1))

    def found(
        self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope, **seen: Any
    ) -> Value:
        (latent, *indexer), chosen = state
        if b.n_ctx <= self.n_chosen or not indexer:
            for part in _INDEXER:
                w.skip(f"blk.{layer}.indexer{part}")
        if b.n_ctx <= self.n_chosen:
            return super().found(b, w, x, layer, latent, rope)
        if indexer:
            chosen[:] = [self.chosen_tokens(b, w, x, layer, *indexer)]
        return super().found(b, w, x, layer, latent, rope, chosen=chosen[0])

    def chosen_tokens(
        self, b: Ops, w: Weights, x: Value, layer: int, summaries: StateHandle, state: StateHandle
    ) -> ChosenKeys:
        """What the indexer chooses."""
        name, n, size = f"blk.{layer}.indexer", self.n_indexer_heads, self.indexer_dim
        norm, bias = (w.vector(f"{name}.k_norm{end}", size) for end in ("", ".bias"))
        key = b.layer_norm(self.project(b, w, x, f"{name}.attn_k", size), norm, bias, self.indexer_eps)
        scores = self.project(b, w, x, f"{name}_compressor_gate", size)
        offsets = w.vector(f"{name}_compressor_ape", size, self.pool)
        b.summarize(key, scores, state, summaries, offsets=offsets, norm=None, eps=0.0, rope=NOPE)
        latent = self.query_latent(b, w, x, layer)
        q = self.project(b, w, latent, f"{name}.attn_q_b", n * size)
        weights = b.scale(self.project(b, w, x, f"{name}.proj", n), float((size * n) ** -0.5))
        best = b.choose_keys(q, weights, summaries, n, self.n_chosen // self.pool)
        return b.stretch_tokens(best, summaries)

    def shared_gated(self, b: Ops, gate: Value, up: Value, layer: int) -> Value:
        return super().shared_gated(b, *clamped(b, gate, up, self.other_clamps[layer]), layer)

    def ff_gated(self, b: Ops, gate: Value, up: Value, layer: int, activation: str) -> Value:
        return super().ff_gated(b, *clamped(b, gate, up, self.other_clamps[layer]), layer, activation)
