"""Grok (xAI)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Self

from llmgen.model.archs import architecture
from llmgen.model.keys import MAX_CONTEXT, Keys
from llmgen.model.mixtures import Mixture
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.rope import Rope, RopeScaling
from llmgen.model.weights import Weights


@architecture("grok")
@dataclass(frozen=True, kw_only=True)
class Grok(Mixture):
    """Norms before and after the blocks, soft caps, scaled embeddings and logits, experts with gelu.

    Grok 2 has a dense feed-forward beside the experts, and takes the mean of both times the root of 2.
    """

    models = "Grok 1 and 2"
    activation, expert_size = "gelu", "given"

    embedding_scale: float
    attention_scale: float
    attn_logit_softcapping: float
    logit_scale: float
    final_logit_softcapping: float

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        return super().read(
            keys,
            embedding_scale=keys.real("embedding_scale", 78.38367176906169),
            attention_scale=keys.real("attention.output_scale", 0.08838834764831845),
            attn_logit_softcapping=keys.real("attn_logit_softcapping", 30.0),
            logit_scale=keys.real("logit_scale", 0.5773502691896257),
            final_logit_softcapping=keys.real("final_logit_softcapping", 0.0),
            rope_scaling=_read_scaling(keys),
            **own,
        )

    def embedded(self, b: Ops, w: Weights) -> Value:
        return b.embed(self.embedding(w), self.embedding_scale or 1.0)

    def block(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        name = f"blk.{layer}."
        a = self.attended(b, w, self.norm(b, w, x, name + "attn_norm"), layer, state, rope)
        x = b.add(x, self.norm(b, w, a, name + "attn_output_norm"))
        f = self.fed_forward(b, w, self.norm(b, w, x, name + "ffn_norm"), layer)
        named = name + "layer_output_norm"
        return b.add(x, self.norm(b, w, f, named if w.has(named) else name + "post_ffw_norm"))

    def scores(self, b: Ops, w: Weights, layer: int) -> dict[str, Any]:
        return {"scale": self.attention_scale, "cap": self.attn_logit_softcapping}

    def fed_forward(self, b: Ops, w: Weights, x: Value, layer: int) -> Value:
        routed = self.routed(b, w, x, layer)
        if not w.has(f"blk.{layer}.ffn_up"):
            return routed
        return b.scale(b.add(self.feed_forward(b, w, x, layer, self.activation), routed), math.sqrt(0.5))

    def finish(self, b: Ops, w: Weights, x: Value) -> None:
        b.logits(b.scale(x, self.logit_scale), self.output_matrix(w), cap=self.final_logit_softcapping)


def _read_scaling(keys: Keys) -> RopeScaling:
    """YaRN whose parts the file may set, whatever kind of scaling it names (src/models/grok.cpp of llama.cpp)."""
    scaling = RopeScaling.read(keys, keys.whole("context_length", high=MAX_CONTEXT))
    extrapolation = keys.real("rope.scaling.yarn_ext_factor", -1.0, low=-1.0)
    if extrapolation < 0:
        extrapolation = float(scaling.kind == "yarn")
    if extrapolation == 0:
        magnitude = keys.real("rope.scaling.yarn_attn_factor", 1.0)
        kind = "linear" if scaling.kind == "yarn" else scaling.kind
        return replace(scaling, kind=kind, attention_factor=scaling.attention_factor * magnitude)
    return replace(
        scaling,
        kind="yarn",
        extrapolation=extrapolation,
        beta_fast=keys.real("rope.scaling.yarn_beta_fast", 8.0),
        beta_slow=keys.real("rope.scaling.yarn_beta_slow", 1.0),
    )
