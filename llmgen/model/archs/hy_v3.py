"""Hy 3 of Tencent."""

from __future__ import annotations

from dataclasses import dataclass

from llmgen.model.archs import architecture
from llmgen.model.blocks import DraftLayers
from llmgen.model.keys import MAX_FEED_FORWARD, Keys
from llmgen.model.mixtures import ByTensors


@architecture("hy_v3")
@dataclass(frozen=True, kw_only=True)
class HyV3(DraftLayers, ByTensors):
    """Qwen 3 with experts and a shared expert; some layers are dense."""

    models = "Hy 3"
    normed_heads, expert_size, choice_bias = True, "divided", "exp_probs_b"
    gating, gating_default, normalized, scaled = None, "sigmoid", None, True

    @classmethod
    def read_shared_ff(cls, keys: Keys, n_expert_ff: int) -> int:
        return keys.whole("expert_shared_feed_forward_length", 0, 0, MAX_FEED_FORWARD) or n_expert_ff
