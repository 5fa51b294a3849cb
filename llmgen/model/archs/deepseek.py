"""The first DeepSeek models with experts (arXiv:2401.06066)."""

from __future__ import annotations

from llmgen.model.archs import architecture
from llmgen.model.mixtures import Mixture


@architecture("deepseek")
class DeepSeek(Mixture):
    """Llama with many small experts and a shared one; the first layers are dense."""

    models = "DeepSeek MoE 16B"
    neox, normalized, scaled = False, False, True
    leading_dense, shared_size = True, "count"
