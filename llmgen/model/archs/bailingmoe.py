"""Ling and Ring of inclusionAI (arXiv:2503.05139)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmgen.model.archs import architecture
from llmgen.model.blocks import DraftLayers
from llmgen.model.mixtures import Mixture
from llmgen.model.ops import Ops
from llmgen.model.weights import Weights


@architecture("bailingmoe")
class BailingMoE(Mixture):
    """Llama with experts and a shared expert; scores are scaled by the size of a head's rotated part."""

    models = "Ling Lite and Plus, Ring Lite"
    neox, shared_size = False, "count"
    normalized, scaled = None, True

    def scores(self, b: Ops, w: Weights, layer: int) -> dict[str, Any]:
        return {"scale": self.n_rot**-0.5}


@architecture("bailingmoe2")
@dataclass(frozen=True, kw_only=True)
class BailingMoE2(DraftLayers, Mixture):
    """Experts in groups and a shared expert, normed heads; the first layers are dense."""

    models = "Ling and Ring 2.0 Mini, Flash and 1T"
    normed_heads, leading_dense, shared_size = True, True, "both"
    gating, normalized, scaled = None, None, True
