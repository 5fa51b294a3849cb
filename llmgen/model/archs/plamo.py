"""PLaMo and PLaMo 3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from llmgen.model.archs import architecture
from llmgen.model.blocks import Parallel, Sandwich, Windowed
from llmgen.model.keys import Keys
from llmgen.model.ops import Ops
from llmgen.model.rope import Rope
from llmgen.model.weights import Weights


@architecture("plamo")
class Plamo(Parallel):
    """Attention beside the feed-forward; whole heads are rotated, on halves, whatever the file says."""

    models = "PLaMo 13B"

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        model = super().read(keys, **own)
        return super().read(keys, n_rot=model.head_dim, **own)


@architecture("plamo3")
@dataclass(frozen=True, kw_only=True)
class Plamo3(Windowed, Sandwich):
    """Norms before and behind the blocks, normed heads, sliding windows with a rotation of their own."""

    models = "PLaMo 3 2B to 31B"
    normed_heads, ff_kind = True, "fused"
    window_period = 8

    rope_base_local: float

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        return super().read(keys, rope_base_local=keys.real("rope.freq_base_swa", 10000.0, low=1e-3), **own)

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        whole, local = self.rope(), Rope.of(self.n_rot, self.rope_base_local, self.neox)
        return [local if is_local else whole for is_local in self.local]
