"""Hy 4 of Tencent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from llmgen.model.archs import architecture
from llmgen.model.hyper_connections import HyperConnections
from llmgen.model.indexer import Indexed, indexer_layers
from llmgen.model.keys import Keys
from llmgen.model.mixtures import ClampedExperts
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.rope import Rope
from llmgen.model.weights import Weights


@architecture("hy_v4")
@dataclass(frozen=True, kw_only=True)
class HyV4(HyperConnections, Indexed, ClampedExperts):
    """Residuals of several streams; latent attention with sinks, whose results are gated, over keys that an
    indexer chooses in some layers; clamped experts and a shared expert; the first layers are dense."""

    models = "Hy 4"
    neox, leading_dense, shared_size = False, True, "count"
    gating, normalized, scaled = None, None, True
    mixes_streams, indexer_neox, indexer_rotates_last, may_see_all = False, False, True, True

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        n_layers, eps = keys.whole("block_count"), keys.real("hyper_connection.epsilon", high=1.0)
        own["has_indexer"] = (False,) * n_layers
        if keys.whole("attention.indexer.top_k", 0, low=0, high=1 << 27):
            own["has_indexer"] = indexer_layers(keys, n_layers, own["has_indexer"])
        scale = keys.real("hyper_connection.magnitude")
        return super().read(keys, indexer_eps=cls.read_eps(keys), write_scale=scale, write_eps=eps, **own)

    def scores(self, b: Ops, w: Weights, layer: int) -> dict[str, Any]:
        return {"sinks": w.vector(f"blk.{layer}.attn_sinks", self.heads(layer))}

    def found(
        self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope, **seen: Any
    ) -> Value:
        found, name = super().found(b, w, x, layer, state, rope, **seen), f"blk.{layer}.attn_gate"
        gate = b.linear(x, w.matrix(name, found.n, x.n))
        return b.gated(gate, found, "sigmoid")
