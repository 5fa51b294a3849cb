"""ERNIE 4.5's dense models, and PaddleOCR-VL, whose text part is one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from llmgen.model.archs import architecture
from llmgen.model.blocks import PreNorm
from llmgen.model.keys import MAX_LAYERS, Keys
from llmgen.model.mixtures import Mixture
from llmgen.model.positions import Sections
from llmgen.model.weights import Weights


@architecture("ernie4_5")
class Ernie45(PreNorm):
    """Llama."""

    models = "ERNIE 4.5 0.3B"
    mixture = True  # llama.cpp's loader does not look at the experts that a dense file speaks of
    neox, output_bias = False, False


@architecture("ernie4_5-moe")
@dataclass(frozen=True, kw_only=True)
class Ernie45MoE(Mixture):
    """Llama with experts in every n-th layer, perhaps with a shared expert."""

    models = "ERNIE 4.5 21B A3B and 300B A47B"
    neox, output_bias = False, False
    leading_dense, shared_size = True, "key"

    step: int
    """Every layer whose number, counted from 1, it divides may be a mixture."""

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        return super().read(keys, step=keys.whole("interleave_moe_layer_step", high=MAX_LAYERS), **own)

    def is_dense(self, w: Weights, layer: int) -> bool:
        return super().is_dense(w, layer) or (layer + 1) % self.step != 0


@architecture("paddleocr")
class PaddleOCR(Sections):
    """The text part of PaddleOCR-VL: Llama with positions that have four axes, on halves."""

    models = "PaddleOCR-VL (text)"
    mixture = True
    sections_required = False
