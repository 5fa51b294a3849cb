"""Mellum 2 of JetBrains, and Maple."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmgen.model.archs import architecture
from llmgen.model.mixtures import Mixture
from llmgen.model.ops import Ops
from llmgen.model.positions import Windowed
from llmgen.model.rope import Rope
from llmgen.model.weights import Weights


@architecture("mellum")
@dataclass(frozen=True, kw_only=True)
class Mellum(Windowed, Mixture):
    """Qwen 3 with experts and sliding windows; layers with a window do not have their positions scaled."""

    models = "Mellum 2"
    normed_heads, expert_size = True, "divided"

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        whole, local = self.rope(), Rope.of(self.n_rot, self.rope_base, self.neox)
        return [local if is_local else whole for is_local in self.local]
