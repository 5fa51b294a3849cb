"""GPT-OSS (arXiv:2508.10925): experts with biases and a clamped gate, attention sinks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from llmgen.model.archs import architecture
from llmgen.model.blocks import Windowed
from llmgen.model.keys import Keys
from llmgen.model.mixtures import Mixture
from llmgen.model.ops import Ops
from llmgen.model.rope import Rope
from llmgen.model.weights import Weights


@architecture("gpt-oss")
@dataclass(frozen=True, kw_only=True)
class GptOss(Windowed, Mixture):
    """Every second layer has a sliding window; experts have biases, their gates and values are clamped; each head
    has a sink."""

    models = "gpt-oss 20B and 120B"
    gating, normalized = "softmax_chosen", False
    activation, ff_norm = "swiglu_oai", "post_attention_norm"
    window_default, window_period = None, 2

    rope_base_local: float

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        base = keys.real("rope.freq_base", 10000.0, low=1e-3)
        return super().read(keys, rope_base_local=keys.real("rope.freq_base_swa", base, low=1e-3), **own)

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        whole = self.rope()
        local = Rope.of(self.n_rot, self.rope_base_local, self.neox, self.rope_scaling)
        return [local if is_local else whole for is_local in self.local]

    def scores(self, b: Ops, w: Weights, layer: int) -> dict[str, Any]:
        return {"sinks": w.vector(f"blk.{layer}.attn_sinks", self.heads(layer))}
