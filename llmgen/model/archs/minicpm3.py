"""MiniCPM 3 and PLM: small dense models with latent attention."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from llmgen.model.archs import architecture
from llmgen.model.keys import Keys
from llmgen.model.latent import LatentAttention
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.rope import Rope
from llmgen.model.weights import Matrix, Weights


@architecture("minicpm3")
@dataclass(frozen=True, kw_only=True)
class MiniCPM3(LatentAttention):
    """Latent attention, and MiniCPM's factors on embeddings, residuals and logits.

    The factors stand in no file; they are llama.cpp's (src/models/minicpm3.cpp).
    """

    models = "MiniCPM 3 4B (arXiv:2404.06395)"
    base_width: ClassVar[int] = 256

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        return super().read(keys, q_lora_rank=keys.whole("attention.q_lora_rank"), **own)

    def factors(self, b: Ops, w: Weights) -> np.ndarray | None:
        return self.longrope_factors(b, w)

    def embedded(self, b: Ops, w: Weights) -> Value:
        return b.embed(self.embedding(w), 12.0)

    def block(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        name, factor = f"blk.{layer}.", 1.4 / math.sqrt(self.n_layers)
        a = self.attended(b, w, self.norm(b, w, x, name + "attn_norm"), layer, state, rope)
        x = b.add(x, b.scale(a, factor))
        f = self.fed_forward(b, w, self.norm(b, w, x, name + "ffn_norm"), layer)
        return b.add(x, b.scale(f, factor))

    def finish(self, b: Ops, w: Weights, x: Value) -> None:
        b.logits(b.scale(x, self.base_width / self.n_embd), self.output_matrix(w))


@architecture("plm")
class PLM(LatentAttention):
    """Latent attention with queries from the layer's input, and the square of ReLU; always tied."""

    models = "PLM 1.8B (arXiv:2503.12167)"
    neox, ff_kind, activation = False, "plain", "relu_squared"

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        return super().read(keys, q_lora_rank=0, **own)

    def output_matrix(self, w: Weights) -> Matrix:
        return self.embedding(w)
