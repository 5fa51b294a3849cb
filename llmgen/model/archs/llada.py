"""Models that write by diffusion: every token sees all others, and masked ones are filled in."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from llmgen.model.archs import architecture
from llmgen.model.blocks import PreNorm
from llmgen.model.mixtures import Mixture
from llmgen.model.ops import Ops, Value
from llmgen.model.weights import Weights


class Diffusion(PreNorm):
    """The usual decoder without causal order (llama.cpp runs it without a cache, all tokens in one batch)."""

    causal: ClassVar[bool] = False


@architecture("dream")
class Dream(Diffusion):
    """Qwen 2 without causal order."""

    models = "Dream 7B (arXiv:2508.15487), Dream Coder"

    def finish(self, b: Ops, w: Weights, x: Value) -> None:
        w.skip("output.bias")  # llama.cpp loads it, and adds none
        b.logits(x, self.output_matrix(w))


@architecture("llada")
class LLaDA(Diffusion):
    """Llama without causal order."""

    models = "LLaDA 8B (arXiv:2502.09992)"
    neox, output_bias = False, False

    def factors(self, b: Ops, w: Weights) -> np.ndarray | None:
        w.skip("rope_freqs")  # llama.cpp loads it, and rotates without it
        return None

    def fed_forward(self, b: Ops, w: Weights, x: Value, layer: int) -> Value:
        """Gated; biases that the file may have are not used, as in llama.cpp's graph."""
        name, n_ff = f"blk.{layer}.ffn_", self.ff(layer)
        for part in ("gate", "up", "down"):
            w.skip(f"{name}{part}.bias")
        gate, up = (b.linear(x, w.matrix(name + part, n_ff, x.n)) for part in ("gate", "up"))
        hidden = b.gated(gate, up, self.activation)
        return b.linear(hidden, w.matrix(name + "down", self.n_embd, n_ff))


@architecture("llada-moe")
class LLaDAMoE(Diffusion, Mixture):
    """LLaDA with experts and normed heads."""

    models = "LLaDA MoE 7B A1B"
    normed_heads, normalized, expert_size = True, False, "divided"


@architecture("rnd1")
class RND1(Diffusion, Mixture):
    """Qwen 3 with experts, without causal order."""

    models = "RND1 30B A3B"
    normed_heads, expert_size = True, "divided"
