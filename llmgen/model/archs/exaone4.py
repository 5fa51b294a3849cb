"""EXAONE 4 (arXiv:2507.11407)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from llmgen.model.archs import architecture
from llmgen.model.blocks import DraftLayers, PostNorm
from llmgen.model.keys import MAX_CONTEXT, Keys
from llmgen.model.ops import Ops
from llmgen.model.positions import Windowed
from llmgen.model.rope import NOPE, Rope
from llmgen.model.weights import Weights


@architecture("exaone4")
@dataclass(frozen=True, kw_only=True)
class Exaone4(DraftLayers, Windowed, PostNorm):
    """Norms after the blocks and over each head of q and k.

    In the model of 64 layers three of four have a sliding window, and the others do not
    rotate; in other sizes all layers rotate and have full attention, whatever the file says
    about windows (llama.cpp, src/models/exaone4.cpp).
    """

    models = "EXAONE 4.0 1.2B and 32B"
    normed_heads = True

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        n_layers = keys.whole("block_count")
        large = n_layers - keys.whole("nextn_predict_layers", 0, 0, n_layers) == 64
        window = keys.whole("attention.sliding_window", 4096, 0, MAX_CONTEXT) if large else 0
        return super().read(keys, window=window, **own)

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        rope = self.rope(self.factors(b, w))
        return [rope if local or not self.window else NOPE for local in self.local]
