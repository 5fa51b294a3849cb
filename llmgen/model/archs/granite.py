"""Granite and MiniCPM: Llama with constants that scale its parts (maximal update, arXiv:2203.03466)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from llmgen.model.archs import architecture
from llmgen.model.blocks import PerLayer, PreNorm
from llmgen.model.decoder import check_same_heads
from llmgen.model.hybrid import Hybrid
from llmgen.model.keys import MAX_CONTEXT, Keys
from llmgen.model.mixtures import Mixture
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.rope import NOPE, Rope
from llmgen.model.state_space import Mamba2Layer
from llmgen.model.weights import Weights


@dataclass(frozen=True, kw_only=True)
class Scaled(PreNorm):
    """Llama whose embeddings, parts, scores and logits have factors; 0 means none.

    The logits' one divides.
    """

    neox: ClassVar[bool] = False

    embedding_scale: float
    residual_scale: float
    attention_scale: float
    logit_scale: float

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        scales = {
            "embedding_scale": keys.real("embedding_scale", 0.0),
            "residual_scale": keys.real("residual_scale", 0.0),
            "attention_scale": keys.real("attention.scale", 0.0),
        }
        if "logit_scale" not in own:
            scales["logit_scale"] = keys.real("logit_scale", low=1e-9)
        return super().read(keys, **(scales | own))

    def embedded(self, b: Ops, w: Weights) -> Value:
        return b.embed(self.embedding(w), self.embedding_scale or 1.0)

    def attended(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        return b.scale(super().attended(b, w, x, layer, state, rope), self.residual_scale or 1.0)

    def scores(self, b: Ops, w: Weights, layer: int) -> dict[str, Any]:
        return {"scale": self.attention_scale or None}

    def fed_forward(self, b: Ops, w: Weights, x: Value, layer: int) -> Value:
        return b.scale(super().fed_forward(b, w, x, layer), self.residual_scale or 1.0)

    def finish(self, b: Ops, w: Weights, x: Value) -> None:
        super().finish(b, w, b.scale(x, 1.0 / self.logit_scale))


@architecture("granite")
@dataclass(frozen=True, kw_only=True)
class Granite(Scaled, Mixture):
    """Llama with scaled embeddings, residuals, scores and logits; the file may switch off the rotation."""

    models = "Granite 3.x and 4.0 dense"
    expert_size, shared_size, may_be_dense = "whole", "key", True

    rotates: bool

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        return super().read(keys, rotates=keys.flag("rope.scaling.finetuned", True), **own)

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        ropes = super().ropes(b, w)
        return ropes if self.rotates else [NOPE] * len(ropes)


@architecture("granitemoe")
@dataclass(frozen=True, kw_only=True)
class GraniteMoE(Scaled, Mixture):
    """Granite with experts, perhaps with a shared expert; without experts it is the same."""

    models = "Granite 3.x MoE 1B A400M and 3B A800M"
    expert_size, shared_size, may_be_dense = "whole", "key", True


@architecture("granitehybrid")
@dataclass(frozen=True, kw_only=True)
class GraniteHybrid(Granite, PerLayer, Mixture, Hybrid):
    """Granite whose layers have Mamba 2 in place of attention where there are no key heads; perhaps with experts."""

    models = "Granite 4.0 H 350M to Small 32B A9B"
    may_be_dense, expert_size, shared_size = True, "whole", "key"

    mixer: Mamba2Layer

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        return super().read(
            keys,
            mixer=Mamba2Layer.read(keys, cls.read_eps(keys)),
            logit_scale=keys.real("logit_scale", 0.0) or 1.0,
            **own,
        )


@architecture("minicpm")
@dataclass(frozen=True, kw_only=True)
class MiniCPM(Scaled, Mixture):
    """Granite with constants that files may leave out (arXiv:2404.06395), perhaps of experts."""

    models = "MiniCPM 1B and 2B, MiniCPM MoE 8x2B"
    expert_size, may_be_dense = "whole", True

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        n_layers, n_embd = keys.whole("block_count"), keys.whole("embedding_length")
        return super().read(
            keys,
            embedding_scale=keys.real("embedding_scale", 12.0),
            residual_scale=keys.real("residual_scale", 1.4 / math.sqrt(n_layers)),
            attention_scale=0.0,
            logit_scale=keys.real("logit_scale", 256.0 / n_embd, low=1e-9),
            **own,
        )


@architecture("granite_swa")
@dataclass(frozen=True, kw_only=True)
class GraniteSWA(Scaled):
    """Granite with attention sinks, sliding windows, and layers that do not rotate."""

    models = "Granite with sliding windows"

    window: int
    local: tuple[bool, ...]
    rotated_layers: tuple[bool, ...]

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        n_layers = keys.whole("block_count")
        key = "attention.sliding_window_pattern"
        if not isinstance(keys.get(key), np.ndarray):
            raise keys.refuse(key, "a flag for each layer")
        rotates = (True,) * n_layers
        if isinstance(keys.get("attention.rope_pattern"), np.ndarray):
            rotates = tuple(map(bool, keys.per_layer("attention.rope_pattern", n_layers, high=1)))
        model = super().read(
            keys,
            window=keys.whole("attention.sliding_window", high=MAX_CONTEXT),
            local=keys.every_nth(key, n_layers, 0),
            rotated_layers=rotates,
            **own,
        )
        check_same_heads(keys, model)
        return model

    def window_of(self, layer: int) -> int:
        return self.window if self.local[layer] else 0

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        rope = self.rope(self.factors(b, w))
        return [rope if rotates else NOPE for rotates in self.rotated_layers]

    def scores(self, b: Ops, w: Weights, layer: int) -> dict[str, Any]:
        sinks = w.vector(f"blk.{layer}.attn_sinks", self.heads(layer))
        return super().scores(b, w, layer) | {"sinks": sinks}
