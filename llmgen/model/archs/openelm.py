"""OpenELM (arXiv:2404.14619)."""

from __future__ import annotations

from llmgen.model.archs import architecture
from llmgen.model.blocks import PerLayer, PreNorm
from llmgen.model.weights import Matrix, Weights


@architecture("openelm")
class OpenELM(PerLayer, PreNorm):
    """Layers grow in heads and feed-forward; normed heads, rotary positions on halves; always tied."""

    models = "OpenELM 270M to 3B"
    normed_heads = True

    def output_matrix(self, w: Weights) -> Matrix:
        return self.embedding(w)
