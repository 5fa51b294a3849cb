"""K-EXAONE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmgen.model.archs import architecture
from llmgen.model.blocks import DraftLayers
from llmgen.model.keys import Keys
from llmgen.model.mixtures import Mixture
from llmgen.model.ops import Ops
from llmgen.model.positions import Windowed
from llmgen.model.rope import NOPE, Rope
from llmgen.model.weights import Weights


@architecture("exaone-moe")
@dataclass(frozen=True, kw_only=True)
class ExaoneMoE(DraftLayers, Windowed, Mixture):
    """Normed heads, sliding windows, experts; layers with full attention do not rotate, the first ones are dense."""

    models = "K-EXAONE 236B A23B"
    normed_heads, window_default = True, None
    gating, normalized, scaled, leading_dense = None, None, True, True

    @classmethod
    def read_shared_ff(cls, keys: Keys, n_expert_ff: int) -> int:
        return keys.whole("expert_shared_feed_forward_length", 0, 0) or n_expert_ff

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        rope = self.rope(self.factors(b, w))
        return [rope if local else NOPE for local in self.local]
