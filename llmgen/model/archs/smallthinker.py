"""SmallThinker (arXiv:2507.20984)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from llmgen.model.archs import architecture
from llmgen.model.keys import MAX_CONTEXT, Keys
from llmgen.model.mixtures import Mixture
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.positions import LocalRopes
from llmgen.model.rope import NOPE, Rope
from llmgen.model.weights import Weights


@architecture("smallthinker")
@dataclass(frozen=True, kw_only=True)
class SmallThinker(LocalRopes, Mixture):
    """Experts with ReLU that are chosen by the layer's input, before the attention.

    With sliding windows the first of four layers has full attention and does not rotate; the
    window is 4096 whatever the file says (llama.cpp, src/models/smallthinker.cpp).
    """

    models = "SmallThinker 4B A0.6B and 21B A3B"
    activation, global_first, gating = "relu", True, None

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        windowed = keys.whole("attention.sliding_window", 0, 0, MAX_CONTEXT) > 0
        return super().read(keys, window=4096 if windowed else 0, **own)

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        ropes = super().ropes(b, w)
        return [NOPE if self.window and i % 4 == 0 else rope for i, rope in enumerate(ropes)]

    def block(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        name = f"blk.{layer}."
        choice = self.chosen(b, w, self.router_logits(b, w, x, layer), layer)
        x = b.add(x, self.attended(b, w, self.norm(b, w, x, name + "attn_norm"), layer, state, rope))
        f = self.experts(b, w, self.norm(b, w, x, name + self.ff_norm), choice, layer)
        return b.add(x, b.mix(f, choice))
