"""Kimi Linear (arXiv:2510.26692): delta attention, and latent attention in every fourth layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from llmgen.model.archs import architecture
from llmgen.model.blocks import PerLayer
from llmgen.model.delta_net import KimiDeltaAttention
from llmgen.model.hybrid import Hybrid
from llmgen.model.keys import Keys
from llmgen.model.latent import LatentAttention
from llmgen.model.mixtures import Mixture
from llmgen.model.ops import Ops
from llmgen.model.rope import NOPE, Rope
from llmgen.model.weights import Weights


@architecture("kimi-linear")
@dataclass(frozen=True, kw_only=True)
class KimiLinear(PerLayer, Mixture, Hybrid, LatentAttention):
    """Delta attention where a layer has no key heads, else latent attention without positions; experts."""

    models = "Kimi Linear 48B A3B"
    gating, leading_dense, scaled, shared_size = None, True, True, "count"

    mixer: KimiDeltaAttention

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        if "mixer" not in own:
            own["mixer"] = KimiDeltaAttention.read(keys, cls.read_eps(keys))
        return super().read(keys, **{"q_lora_rank": 0} | own)

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        return [NOPE] * self.n_layers
