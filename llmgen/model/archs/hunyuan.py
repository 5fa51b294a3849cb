"""Hunyuan's dense models and the text part of its model with images."""

from __future__ import annotations

from typing import Any, Self

from llmgen.model.archs import architecture
from llmgen.model.keys import Keys
from llmgen.model.mixtures import Mixture
from llmgen.model.positions import NormedAfterRope, Sections


@architecture("hunyuan_vl", "hunyuan-dense")
class Hunyuan(NormedAfterRope, Sections):
    """Llama with rotary positions on halves and an RMS norm over each rotated head of q and k.

    A file may give the base of the rotation as NTK's alpha; with images, positions have four axes.
    """

    models = "Hunyuan 0.5B to 7B, Hunyuan MT, HunyuanOCR (text)"
    mixture = True  # files without experts say that they have one
    sections_required = False

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        model = super().read(keys, **own)
        alpha = keys.real("rope.scaling.alpha", 0.0)
        if not alpha:
            return model
        base = model.rope_base * alpha ** (model.head_dim / (model.head_dim - 2))
        return super().read(keys, rope_base=base, **own)


@architecture("hunyuan-moe")
class HunyuanMoE(NormedAfterRope, Mixture):
    """Hunyuan with experts and a shared expert."""

    models = "Hunyuan A13B"
    expert_size, shared_size = "whole", "dense"
