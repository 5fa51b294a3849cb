"""Mistral 4: DeepSeek's latent attention and experts."""

from __future__ import annotations

from llmgen.model.archs import architecture
from llmgen.model.archs.deepseek2 import DeepSeek2


@architecture("mistral4")
class Mistral4(DeepSeek2):
    """DeepSeek V2, but rotations keep a magnitude where the file has a log multiplier."""

    models = "Mistral Small 4"
    cancels_magnitude = False
