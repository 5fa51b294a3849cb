"""Orion (arXiv:2401.12246)."""

from __future__ import annotations

from llmgen.model.archs import architecture
from llmgen.model.blocks import LayerNorms, PreNorm


@architecture("orion")
class Orion(LayerNorms, PreNorm):
    """Llama with layer norms that have biases, and rotary positions on halves."""

    models = "Orion 14B"
