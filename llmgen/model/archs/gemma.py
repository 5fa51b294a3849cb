"""Gemma (arXiv:2403.08295), Gemma 2 (arXiv:2408.00118), Gemma 3 (arXiv:2503.19786)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from llmgen.model.archs import architecture
from llmgen.model.blocks import PreNorm, Sandwich
from llmgen.model.keys import Keys
from llmgen.model.ops import Ops, Value
from llmgen.model.positions import Windowed
from llmgen.model.rope import Rope, RopeScaling
from llmgen.model.weights import Matrix, Weights


@architecture("gemma")
class Gemma(PreNorm):
    """Llama with scaled embeddings and gelu; always tied."""

    models = "Gemma 2B and 7B, CodeGemma"
    activation = "gelu"

    def embedded(self, b: Ops, w: Weights) -> Value:
        return b.embed(self.embedding(w), scale=math.sqrt(self.n_embd))

    def output_matrix(self, w: Weights) -> Matrix:
        return self.embedding(w)


@dataclass(frozen=True, kw_only=True)
class _Windowed(Windowed, Sandwich):
    """What Gemma 2 and 3 share: norms before and after each block, layers with a sliding window."""

    activation: ClassVar[str] = "gelu"
    odd_size: ClassVar[int]
    """The number of layers of the one model whose scores are scaled as if heads filled the embedding."""

    rope_base_local: float
    final_logit_softcapping: float

    def embedded(self, b: Ops, w: Weights) -> Value:
        return b.embed(self.embedding(w), scale=math.sqrt(self.n_embd))

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        whole = self.rope()
        local = Rope.of(self.n_rot, self.rope_base_local, self.neox, self.local_scaling())
        return [local if is_local else whole for is_local in self.local]

    def local_scaling(self) -> RopeScaling:
        """How positions are squeezed in layers with the window."""
        return self.rope_scaling

    def scores(self, b: Ops, w: Weights, layer: int) -> dict[str, Any]:
        odd = self.n_layers == self.odd_size
        return {"scale": (self.n_embd // self.n_heads) ** -0.5 if odd else None}

    def finish(self, b: Ops, w: Weights, x: Value) -> None:
        b.logits(x, self.output_matrix(w), cap=self.final_logit_softcapping)


@architecture("gemma2")
@dataclass(frozen=True, kw_only=True)
class Gemma2(_Windowed):
    """Soft caps, every second layer with a sliding window; always tied."""

    models = "Gemma 2 2B, 9B and 27B"
    window_default, window_period, odd_size = 4096, 2, 46

    attn_logit_softcapping: float

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        base = keys.real("rope.freq_base", 10000.0, low=1e-3)
        return super().read(
            keys,
            rope_base_local=keys.real("rope.freq_base_swa", base, low=1e-3),
            attn_logit_softcapping=keys.real("attn_logit_softcapping", 50.0),
            final_logit_softcapping=keys.real("final_logit_softcapping", 30.0),
            **own,
        )

    def scores(self, b: Ops, w: Weights, layer: int) -> dict[str, Any]:
        return super().scores(b, w, layer) | {"cap": self.attn_logit_softcapping}

    def output_matrix(self, w: Weights) -> Matrix:
        return self.embedding(w)


@architecture("gemma3")
@dataclass(frozen=True, kw_only=True)
class Gemma3(_Windowed):
    """Gemma 2 with normed heads instead of the attention's cap; five of six layers have the window."""

    models = "Gemma 3 270M to 27B (text)"
    normed_heads = True
    window_default, window_period, odd_size = 0, 6, 62

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        return super().read(
            keys,
            rope_base_local=keys.real("rope.freq_base_swa", 10000.0, low=1e-3),
            final_logit_softcapping=keys.real("final_logit_softcapping", 0.0),
            **own,
        )

    def local_scaling(self) -> RopeScaling:
        return self.rope_scaling.unstretched()
