"""ERNIE 4.5's dense models, and PaddleOCR-VL, whose text part is one."""

from __future__ import annotations

from llmgen.model.archs import architecture
from llmgen.model.blocks import PreNorm, Sections


@architecture("ernie4_5")
class Ernie45(PreNorm):
    """Llama."""

    models = "ERNIE 4.5 0.3B"
    mixture = True  # llama.cpp's loader does not look at the experts that a dense file speaks of
    neox, output_bias = False, False


@architecture("paddleocr")
class PaddleOCR(Sections):
    """The text part of PaddleOCR-VL: Llama with positions that have four axes, on halves."""

    models = "PaddleOCR-VL (text)"
    mixture = True
    sections_required = False
