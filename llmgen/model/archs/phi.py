"""Phi-2 and Phi-3 (arXiv:2404.14219)."""

from __future__ import annotations

import numpy as np

from llmgen.model.archs import architecture
from llmgen.model.blocks import LayerNorms, Parallel, PreNorm
from llmgen.model.mixtures import Mixture
from llmgen.model.ops import Ops, Value
from llmgen.model.weights import Weights


@architecture("phi2")
class Phi2(LayerNorms, Parallel):
    """Attention beside a plain feed-forward, layer norms, biases everywhere."""

    models = "Phi-1, Phi-1.5, Phi-2"
    ff_kind, activation = "plain", "gelu"


@architecture("phi3")
class Phi3(PreNorm):
    """Llama with rotary positions on halves; gate and up projections are one matrix, gate first."""

    models = "Phi-3 and 3.5 mini and medium, Phi-4"
    ff_kind = "fused"

    def factors(self, b: Ops, w: Weights) -> np.ndarray | None:
        return self.longrope_factors(b, w)


@architecture("phimoe")
class PhiMoE(Mixture):
    """Phi-3 with experts; its RMS norms and its logits have biases."""

    models = "Phi-3.5 MoE"
    expert_size = "whole"

    def factors(self, b: Ops, w: Weights) -> np.ndarray | None:
        return self.longrope_factors(b, w)

    def norm(self, b: Ops, w: Weights, x: Value, name: str) -> Value:
        return b.add(super().norm(b, w, x, name), w.vector(f"{name}.bias", x.n))
