"""Command R and Command R7B: attention beside the feed-forward, layer norms without biases, always tied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from llmgen.model.archs import architecture
from llmgen.model.blocks import DraftLayers, LayerNormedHeads, LayerNorms, Parallel
from llmgen.model.keys import MAX_FEED_FORWARD, Keys
from llmgen.model.mixtures import MAX_EXPERTS, Mixture
from llmgen.model.ops import Ops, Value
from llmgen.model.positions import Windowed
from llmgen.model.rope import NOPE, Rope
from llmgen.model.weights import Matrix, Weights


@architecture("command-r")
@dataclass(frozen=True, kw_only=True)
class CommandR(LayerNorms, LayerNormedHeads, Parallel):
    """Rotary positions on neighbouring pairs; logits are scaled; each head of q and k may have a layer norm."""

    models = "Command R, Command R+, Aya 23 and Expanse"
    neox = False

    logit_scale: float

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        return super().read(keys, logit_scale=keys.real("logit_scale", 0.0), **own)

    def output_matrix(self, w: Weights) -> Matrix:
        return self.embedding(w)

    def finish(self, b: Ops, w: Weights, x: Value) -> None:
        b.logits(b.scale(x, self.logit_scale or 1.0), self.output_matrix(w))


@architecture("cohere2")
@dataclass(frozen=True, kw_only=True)
class Cohere2(Windowed, CommandR):
    """Command R with sliding windows; the layers with full attention do not rotate."""

    models = "Command R7B, Command A, Aya Vision and Command A Vision (text)"
    window_default = None

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        rope = self.rope(self.factors(b, w))
        return [rope if local else NOPE for local in self.local]


@architecture("cohere2moe")
@dataclass(frozen=True, kw_only=True)
class Cohere2MoE(DraftLayers, Windowed, Parallel, Mixture):
    """Attention beside the mean of experts and a shared expert; sliding windows.

    The first layers are dense.  Layers with full attention do not rotate, unless they are dense.
    The norms are RMS norms or, where the file has no epsilon for these, layer norms.
    """

    models = "Command A with experts"
    neox, window_default, global_first = False, None, True
    gating, gating_default, normalized, scaled = None, "sigmoid", None, True
    expert_size, leading_dense = "given", True

    rms_norms: bool
    logit_scale: float

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        rms = keys.real("attention.layer_norm_rms_epsilon", 0.0, high=1.0)
        eps = rms or keys.real("attention.layer_norm_epsilon", high=1.0)
        scale = keys.real("logit_scale")
        return super().read(keys, rms_norms=rms > 0, norm_eps=eps, logit_scale=scale, **own)

    @classmethod
    def read_shared_ff(cls, keys: Keys, n_expert_ff: int) -> int:
        count = keys.whole("expert_shared_count", 0, 0, MAX_EXPERTS)
        given = keys.whole("expert_shared_feed_forward_length", 0, 0, MAX_FEED_FORWARD)
        return (given or n_expert_ff * count) if count else 0

    def norm(self, b: Ops, w: Weights, x: Value, name: str) -> Value:
        weights = w.vector(name, x.n)
        if self.rms_norms:
            return b.rms_norm(x, weights, self.norm_eps)
        return b.layer_norm(x, weights, None, self.norm_eps)

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        rope = self.rope(self.factors(b, w))
        return [rope if self.local[i] or self.is_dense(w, i) else NOPE for i in self.layers]

    def fed_forward(self, b: Ops, w: Weights, x: Value, layer: int) -> Value:
        y = super().fed_forward(b, w, x, layer)
        return b.scale(y, 0.5) if self.n_shared_ff and not self.is_dense(w, layer) else y

    def finish(self, b: Ops, w: Weights, x: Value) -> None:
        b.logits(b.scale(x, self.logit_scale or 1.0), self.output_matrix(w))
