"""GPT-OSS (arXiv:2508.10925): experts with biases and a clamped gate, attention sinks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmgen.model.archs import architecture
from llmgen.model.mixtures import Mixture
from llmgen.model.ops import Ops
from llmgen.model.positions import LocalRopes
from llmgen.model.weights import Weights


@architecture("gpt-oss")
@dataclass(frozen=True, kw_only=True)
class GptOss(LocalRopes, Mixture):
    """Every second layer has a sliding window; experts have biases, their gates and values are clamped; each head
    has a sink."""

    models = "gpt-oss 20B and 120B"
    gating, normalized = "softmax_chosen", False
    activation, ff_norm = "swiglu_oai", "post_attention_norm"
    window_default, window_period = None, 2

    def scores(self, b: Ops, w: Weights, layer: int) -> dict[str, Any]:
        return {"sinks": w.vector(f"blk.{layer}.attn_sinks", self.heads(layer))}
