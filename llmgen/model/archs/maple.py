"""Maple."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmgen.model.archs import architecture
from llmgen.model.mixtures import ClampedExperts
from llmgen.model.ops import Ops
from llmgen.model.positions import LocalRopes
from llmgen.model.rope import NOPE, Rope
from llmgen.model.weights import Weights


@architecture("maple")
@dataclass(frozen=True, kw_only=True)
class Maple(LocalRopes, ClampedExperts):
    """Qwen 3 with experts whose gates and values are clamped; layers with full attention do not rotate."""

    models = "Maple"
    normed_heads, window_default, window_period = True, None, 0

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        local = self.local_rope()
        return [local if is_local else NOPE for is_local in self.local]
