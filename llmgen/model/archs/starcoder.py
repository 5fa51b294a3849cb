"""StarCoder (arXiv:2305.06161) and StarCoder 2 (arXiv:2402.19173)."""

from __future__ import annotations

from llmgen.model.archs import architecture
from llmgen.model.blocks import LayerNorms, PreNorm
from llmgen.model.positions import LearnedPositions


@architecture("starcoder")
class StarCoder(LayerNorms, LearnedPositions, PreNorm):
    """Learned positions, layer norms, a plain feed-forward with gelu, biases everywhere."""

    models = "StarCoder, SantaCoder, Granite Code 20B and 34B"
    ff_kind, activation = "plain", "gelu"


@architecture("starcoder2")
class StarCoder2(LayerNorms, PreNorm):
    """Layer norms, rotary positions on halves, a plain feed-forward with gelu, biases everywhere."""

    models = "StarCoder 2 3B, 7B and 15B"
    ff_kind, activation = "plain", "gelu"
