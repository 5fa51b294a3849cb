"""Trinity of Arcee."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from llmgen.model.archs import architecture
from llmgen.model.archs.gated import GatedAttention
from llmgen.model.blocks import Sandwich
from llmgen.model.mixtures import Mixture
from llmgen.model.ops import Ops, Value
from llmgen.model.positions import LocalRopes
from llmgen.model.rope import NOPE, Rope
from llmgen.model.weights import Weights


@architecture("afmoe")
@dataclass(frozen=True, kw_only=True)
class AFMoE(GatedAttention, LocalRopes, Mixture, Sandwich):
    """Gated attention with sliding windows and normed heads, norms before and after the blocks, experts.

    Every fourth layer does not rotate; the first layers are dense.
    """

    models = "Arcee Trinity Nano, Mini and Large"
    normed_heads, leading_dense, shared_size = True, True, "count"
    gating, gating_default, normalized, scaled = None, "sigmoid", None, True

    def embedded(self, b: Ops, w: Weights) -> Value:
        return b.embed(self.embedding(w), math.sqrt(self.n_embd))

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        return [NOPE if layer % 4 == 3 else rope for layer, rope in enumerate(super().ropes(b, w))]
