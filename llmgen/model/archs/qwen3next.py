"""Qwen 3 Next: what Qwen 3.5 became, with its heads in another order."""

from __future__ import annotations

from dataclasses import dataclass

from llmgen.model.archs import architecture
from llmgen.model.archs.qwen35 import DeltaHybrid
from llmgen.model.delta_net import DeltaNet
from llmgen.model.mixtures import GatedShared
from llmgen.model.ops import Ops, Value
from llmgen.model.weights import Weights


class NextDeltaNet(DeltaNet):
    """Each head of k has the rates of its heads of v together; in older files also their inputs."""

    def inputs(self, b: Ops, w: Weights, x: Value, layer: int) -> tuple[list[Value], Value]:
        name = f"blk.{layer}."
        if w.has(f"{name}attn_qkv"):
            w.skip(f"{name}ssm_in")  # the same weights as older files have them
            return super().inputs(b, w, x, layer)
        n_values = self.n_heads // self.n_keys * self.value_dim
        sizes = (self.key_dim, self.key_dim, n_values, n_values)
        mixed = b.linear(x, w.matrix(f"{name}ssm_in", self.n_keys * sum(sizes), x.n))
        *qkv, gate = (b.head_part(mixed, self.n_keys, sum(sizes[:i]), n) for i, n in enumerate(sizes))
        return qkv, gate

    def rates(self, b: Ops, w: Weights, x: Value, layer: int) -> tuple[Value, Value]:
        both = b.linear(x, w.matrix(f"blk.{layer}.ssm_ba", 2 * self.n_heads, x.n))
        n = self.n_heads // self.n_keys
        write, forget = (b.head_part(both, self.n_keys, first, n) for first in (0, n))
        return forget, write


@architecture("qwen3next")
@dataclass(frozen=True, kw_only=True)
class Qwen3Next(GatedShared, DeltaHybrid):
    """Gated delta nets, and in every fourth layer attention whose results are gated; experts and a
    gated shared expert."""

    models = "Qwen 3 Next 80B A3B, Qwen 3 Coder Next"
    expert_size = "divided"
    tiled = False
    delta_net = NextDeltaNet
