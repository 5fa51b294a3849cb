"""Qwen (arXiv:2309.16609), Qwen 2 (arXiv:2407.10671), Qwen 3 (arXiv:2505.09388), and the texts of their VL models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from llmgen.model.archs import architecture
from llmgen.model.blocks import PreNorm
from llmgen.model.keys import MAX_FEED_FORWARD, Keys
from llmgen.model.mixtures import GatedShared, Mixture
from llmgen.model.ops import Ops, Value
from llmgen.model.positions import Sections
from llmgen.model.weights import Weights


@architecture("qwen")
class Qwen(PreNorm):
    """Llama with rotary positions on halves; the file counts gate and up projections together."""

    models = "Qwen 1 1.8B to 72B"

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        both = keys.whole("feed_forward_length", low=2, high=MAX_FEED_FORWARD)
        return super().read(keys, n_ff=both // 2, **own)


@architecture("qwen2")
class Qwen2(PreNorm):
    """Llama with rotary positions on halves, biases on q, k and v, and perhaps one on the logits."""

    models = "Qwen 1.5, 2 and 2.5, QwQ, DeepSeek R1 Distill Qwen"


@architecture("qwen3")
class Qwen3(PreNorm):
    """Qwen 2 with an RMS norm over each head of q and k, and no bias on the logits."""

    models = "Qwen 3 0.6B to 32B"
    normed_heads = True

    def finish(self, b: Ops, w: Weights, x: Value) -> None:
        w.skip("cls.output")  # the head of a reranker
        b.logits(x, self.output_matrix(w))


@architecture("qwen2moe")
class Qwen2MoE(GatedShared):
    """Qwen 2 with experts and a gated shared expert."""

    models = "Qwen 1.5 MoE A2.7B, Qwen 2 57B A14B"
    normalized, expert_size = False, "divided"


@architecture("qwen3moe")
class Qwen3MoE(Mixture):
    """Qwen 3 with experts."""

    models = "Qwen 3 30B A3B and 235B A22B, Qwen 3 Coder"
    normed_heads, expert_size = True, "divided"


@architecture("qwen2vl")
class Qwen2VL(Sections):
    """The text part of a Qwen 2 with images: its positions have four axes."""

    models = "Qwen 2 VL and 2.5 VL (text)"
    eps_default = 1e-6

    def finish(self, b: Ops, w: Weights, x: Value) -> None:
        w.skip("output.bias")  # llama.cpp's graph does not add it
        b.logits(x, self.output_matrix(w))


@architecture("qwen3vl", "qwen3tts")
class Qwen3VL(Sections):
    """The text part of a Qwen 3 with images, whose positions have three axes by turns; or a Qwen 3 that speaks."""

    models = "Qwen 3 VL (text), Qwen 3 TTS (its talker)"
    normed_heads = True
    interleaved = True

    def finish(self, b: Ops, w: Weights, x: Value) -> None:
        w.skip("cls.output")
        b.logits(x, self.output_matrix(w))


@architecture("qwen3vlmoe")
@dataclass(frozen=True, kw_only=True)
class Qwen3VLMoE(Sections, Mixture):
    """The text part of a Qwen 3 with experts and images."""

    models = "Qwen 3 VL 30B A3B and 235B A22B (text)"
    normed_heads, interleaved, expert_size = True, True, "divided"
