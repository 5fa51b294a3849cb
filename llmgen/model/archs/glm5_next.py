"""GLM 5 Next of Z.ai (llama.cpp's src/models/glm5-next.cpp)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from llmgen.errors import UsageError
from llmgen.model.archs import architecture
from llmgen.model.blocks import DraftLayers, PerLayer, PreNorm
from llmgen.model.delta_net import KimiDeltaAttention
from llmgen.model.hybrid import Hybrid
from llmgen.model.hyper_connections import HyperConnections
from llmgen.model.keys import MAX_CONTEXT, MAX_LAYERS, Keys
from llmgen.model.latent import LatentAttention
from llmgen.model.mixtures import ClampedExperts, clamped
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.rope import Rope
from llmgen.model.weights import Weights

_INDEXER = ("attn_q_b", "attn_k", "k_norm", "k_norm.bias", "proj")


@architecture("glm5-next")
@dataclass(frozen=True, kw_only=True)
class GLM5Next(DraftLayers, HyperConnections, PerLayer, ClampedExperts, Hybrid, LatentAttention):
    """Residuals of several streams; delta attention where a layer has no key heads, else latent attention without
    positions; clamped experts and a shared expert behind dense layers.

    Latent attention sees the keys that an indexer chooses pool by pool.  In a context of no more tokens than it
    chooses these are all, and a longer one is refused.
    """

    models = "GLM-5.3 Flash"
    leading_dense, shared_size = True, "count"
    gating, gating_default, normalized, scaled = None, "sigmoid", None, True

    mixer: KimiDeltaAttention
    n_chosen: int
    """Keys that the indexer chooses."""
    other_clamps: tuple[float, ...]
    """``clamps`` of dense feed-forwards and of the shared expert."""

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        n_layers = keys.whole("block_count", high=MAX_LAYERS)
        clamps = keys.per_layer_real("swiglu_clamp_exp", n_layers, 0.0)
        given = keys.get("swiglu_clamp_shexp") is not None
        bound = keys.real("kda.gate_lower_bound", 0.0, low=-1e3, high=0.0)
        mixer = KimiDeltaAttention.read(keys, cls.read_eps(keys), bound, negated=bound != 0)
        if not keys.flag("attention.indexer.kpool_select_tail", True):
            raise keys.refuse("attention.indexer.kpool_select_tail", "true")
        model = super().read(
            keys,
            mixer=replace(mixer, unit_eps=1e-6),
            n_chosen=keys.whole("attention.indexer.top_k", high=MAX_CONTEXT),
            clamps=clamps,
            other_clamps=keys.per_layer_real("swiglu_clamp_shexp", n_layers) if given else clamps,
            **own,
        )
        if model.n_rot:
            raise keys.refuse("rope.dimension_count", "0: latent attention without positions")
        return model

    def outcome(self, b: Ops, w: Weights, x: Value) -> Value:
        n = self.n_streams
        shares = w.derived(f"1 / {n}", lambda: np.full(n, 1 / n, np.float32))
        return PreNorm.outcome(self, b, w, b.blend(x, shares, 1))

    def found(
        self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope, **seen: Any
    ) -> Value:
        if b.n_ctx > self.n_chosen:
            raise UsageError(
                f"the indexer of {self.architecture} chooses {self.n_chosen:,} keys, which llmgen does not do yet; "
                f"expected a context of no more, not of {b.n_ctx:,}; choose a smaller one (-c)"
            )
        for part in (
            *(f"indexer.{part}" for part in _INDEXER),
            *(f"indexer_compressor_{p}" for p in ("gate", "ape")),
        ):
            w.skip(f"blk.{layer}.{part}")
        return super().found(b, w, x, layer, state, rope, **seen)

    def shared_gated(self, b: Ops, gate: Value, up: Value, layer: int) -> Value:
        return super().shared_gated(b, *clamped(b, gate, up, self.other_clamps[layer]), layer)

    def ff_gated(self, b: Ops, gate: Value, up: Value, layer: int, activation: str) -> Value:
        return super().ff_gated(b, *clamped(b, gate, up, self.other_clamps[layer]), layer, activation)
