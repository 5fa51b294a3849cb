"""dots.llm1 (arXiv:2506.05767)."""

from __future__ import annotations

from llmgen.model.archs import architecture
from llmgen.model.mixtures import Mixture


@architecture("dots1")
class Dots1(Mixture):
    """Qwen 3 with experts and a shared expert; the first layers are dense."""

    models = "dots.llm1 142B A14B"
    normed_heads, leading_dense, shared_size = True, True, "count"
    gating, normalized, scaled = None, None, True
