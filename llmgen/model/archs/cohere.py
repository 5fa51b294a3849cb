"""Command R and Command R7B: attention beside the feed-forward, layer norms without biases, always tied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from llmgen.model.archs import architecture
from llmgen.model.blocks import LayerNorms, Parallel, Windowed
from llmgen.model.keys import Keys
from llmgen.model.ops import Ops, Value
from llmgen.model.rope import NOPE, Rope
from llmgen.model.weights import Matrix, Weights


@architecture("command-r")
@dataclass(frozen=True, kw_only=True)
class CommandR(LayerNorms, Parallel):
    """Rotary positions on neighbouring pairs; logits are scaled; each head of q and k may have a layer norm."""

    models = "Command R, Command R+, Aya 23 and Expanse"
    neox = False

    logit_scale: float

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        return super().read(keys, logit_scale=keys.real("logit_scale", 0.0), **own)

    def projections(self, b: Ops, w: Weights, x: Value, layer: int) -> tuple[Value, Value, Value]:
        q, k, v = self.qkv(b, w, x, layer)
        name = f"blk.{layer}.attn_"
        if w.has(name + "q_norm"):
            q_norm = w.vector(name + "q_norm", self.head_dim, self.n_heads)
            k_norm = w.vector(name + "k_norm", self.head_dim, self.n_kv_heads)
            q = b.head_layer_norm(q, q_norm, self.n_heads, self.norm_eps)
            k = b.head_layer_norm(k, k_norm, self.n_kv_heads, self.norm_eps)
        return q, k, v

    def output_matrix(self, w: Weights) -> Matrix:
        return self.embedding(w)

    def finish(self, b: Ops, w: Weights, x: Value) -> None:
        b.logits(b.scale(x, self.logit_scale or 1.0), self.output_matrix(w))


@architecture("cohere2")
@dataclass(frozen=True, kw_only=True)
class Cohere2(Windowed, CommandR):
    """Command R with sliding windows; the layers that see everything do not rotate."""

    models = "Command R7B, Command A, Aya Vision and Command A Vision (text)"
    window_default = None

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        rope = self.rope(self.factors(b, w))
        return [rope if local else NOPE for local in self.local]
