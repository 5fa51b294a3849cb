"""Llama (arXiv:2302.13971) and Mistral 3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from llmgen.model.archs import architecture
from llmgen.model.decoder import Decoder
from llmgen.model.keys import Keys
from llmgen.model.ops import Ops, StateHandle
from llmgen.model.rope import RopeScaling
from llmgen.model.weights import Weights


@architecture("llama")
class Llama(Decoder):
    """Pre-norm transformer with rotary positions on neighbouring pairs and a gated feed-forward."""

    neox = False

    def forward(self, b: Ops, w: Weights, states: Sequence[StateHandle]) -> None:
        longrope = self.rope_scaling.kind == "longrope"
        rope = self.rope(self.longrope_factors(b, w) if longrope else self.rope_factors(w, "rope_freqs"))
        position_scale = self.position_scale(b.n_ctx)
        x = b.embed(self.embedding(w))
        for layer in range(self.n_layers):
            qkv = self.qkv(b, w, self.norm(b, w, x, f"blk.{layer}.attn_norm"), layer)
            a = self.attention(
                b, w, qkv, layer, states[layer], rope, output_bias=True, position_scale=position_scale
            )
            x = b.add(x, a)
            h = self.norm(b, w, x, f"blk.{layer}.ffn_norm")
            x = b.add(x, self.feed_forward(b, w, h, layer, biases=True))
        b.logits(self.norm(b, w, x, "output_norm"), self.output_matrix(w))

    def position_scale(self, n_ctx: int) -> np.ndarray | None:
        """A factor on the queries of each position, float32 [n_ctx], or None."""
        return None


@architecture("mistral3")
@dataclass(frozen=True, kw_only=True)
class Mistral3(Llama):
    """Llama whose queries may grow beyond the original context, and whose file may set YaRN's ramp."""

    temperature_scale: float

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        base = Llama.read(keys)
        own["rope_scaling"] = RopeScaling.read(keys, base.context_length, ramp=True)
        return super().read(keys, temperature_scale=keys.real("attention.temperature_scale", 0.0), **own)

    def position_scale(self, n_ctx: int) -> np.ndarray | None:
        """1 + scale * ln(1 + how often the original context has been passed)."""
        if not self.temperature_scale:
            return None
        passed = np.arange(n_ctx) // max(self.rope_scaling.original_context, 1)
        return (1.0 + self.temperature_scale * np.log(passed + 1.0)).astype(np.float32)
