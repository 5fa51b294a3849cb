"""Kimi K3: Kimi Linear whose residuals are weighted means of the inputs of earlier blocks of layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from llmgen.model.archs import architecture
from llmgen.model.archs.kimi_linear import KimiLinear
from llmgen.model.delta_net import KimiDeltaAttention
from llmgen.model.keys import MAX_LAYERS, Keys
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.rope import Rope
from llmgen.model.weights import Weights


@architecture("kimi-k3")
@dataclass(frozen=True, kw_only=True)
class KimiK3(KimiLinear):
    """Kimi Linear with gated latent attention, narrow experts, gates bounded by tanh, and residuals that are a
    weighted mean of the inputs of blocks of layers."""

    models = "Kimi K3"
    normalized = None

    block_size: int
    """Layers of a block, after which the sum of residuals starts anew; 0: one sum for all."""
    gate_bound: float
    value_bound: float
    """Bounds of a feed-forward's gate and value; 0 for the value: none."""
    latent: int
    """Width of the experts' input, where it is narrower than the model."""

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        bound = keys.real("kda.gate_lower_bound", 0.0, low=-1e3, high=0.0)
        mixer = KimiDeltaAttention.read(keys, cls.read_eps(keys), bound, negated=bound != 0)
        return super().read(
            keys,
            mixer=mixer,
            q_lora_rank=keys.whole("attention.q_lora_rank", 0, low=0),
            block_size=keys.whole("attn_res.block_size", low=0, high=MAX_LAYERS),
            gate_bound=keys.real("activation.situ_beta", low=1e-3),
            value_bound=keys.real("activation.situ_linear_beta"),
            latent=keys.whole("expert_latent_length", 0, low=0),
            **own,
        )

    def forward(self, b: Ops, w: Weights, states: Sequence[StateHandle]) -> None:
        slots, ropes = iter(states), self.ropes(b, w)
        x, begun = self.embedded(b, w), list[Value]()
        for layer in self.layers:
            own = [next(slots) for _ in self.layer_states(layer)]
            x = self.residual_block(b, w, x, layer, own, ropes[layer], begun)
        self.finish(b, w, self.norm(b, w, self.mean(b, w, x, begun, "output_res_score"), self.last_norm))

    def residual_block(
        self, b: Ops, w: Weights, x: Value, layer: int, states: Any, rope: Rope, begun: list[Value]
    ) -> Value:
        """One layer; begun: the inputs of the blocks so far, to which this one may add."""
        name = f"blk.{layer}."
        begins = self.block_size > 0 and layer % self.block_size == 0
        h = self.norm(b, w, self.mean(b, w, x, begun, name + "attn_res_score"), name + "attn_norm")
        if begins:
            begun.append(x)
        a = self.attended(b, w, h, layer, states, rope)
        x = a if begins else b.add(x, a)
        h = self.norm(b, w, self.mean(b, w, x, begun, name + "ffn_res_score"), name + "ffn_norm")
        return b.add(x, self.fed_forward(b, w, h, layer))

    def mean(self, b: Ops, w: Weights, x: Value, begun: Sequence[Value], name: str) -> Value:
        """The mean of x and the inputs of blocks, weighted by the softmax of their scores.

        They are added one by one: a new one's share is the sigmoid of its score minus the logarithm of the
        sum of e^score so far, which then grows by the softplus of that difference.
        """
        if not begun:
            w.skip(name)
            return x
        scores = w.matrix(name, 1, self.n_embd)
        total = b.linear(self.weightless_norm(b, w, x), scores)
        for other in begun:
            score = b.linear(self.weightless_norm(b, w, other), scores)
            ahead = b.add(score, b.scale(total, -1.0))
            x = b.add(x, b.gate_heads(b.add(other, b.scale(x, -1.0)), ahead))
            total = b.add(total, b.activate(ahead, "softplus"))
        return x

    def found(
        self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope, **seen: Any
    ) -> Value:
        found, name = super().found(b, w, x, layer, state, rope, **seen), f"blk.{layer}.attn_gate"
        if not w.has(name):
            return found
        return b.gated(b.linear(x, w.matrix(name, found.n, x.n)), found, "sigmoid")

    def routed(self, b: Ops, w: Weights, x: Value, layer: int) -> Value:
        if not self.latent:
            return super().routed(b, w, x, layer)
        name = f"blk.{layer}.ffn_routed_"
        choice = self.chosen(b, w, self.router_logits(b, w, x, layer), layer)
        narrow = b.linear(x, w.matrix(f"{name}down", self.latent, x.n))
        y = b.mix(self.experts(b, w, narrow, choice, layer), choice)
        if w.has(f"{name}norm"):
            y = self.norm(b, w, y, f"{name}norm")
        return b.linear(y, w.matrix(f"{name}up", x.n, self.latent))

    def expert_gated(self, b: Ops, gate: Value, up: Value, layer: int) -> Value:
        return self.bounded(b, gate, up)

    def shared_gated(self, b: Ops, gate: Value, up: Value, layer: int) -> Value:
        return self.bounded(b, gate, up)

    def ff_gated(self, b: Ops, gate: Value, up: Value, layer: int, activation: str) -> Value:
        return self.bounded(b, gate, up)

    def bounded(self, b: Ops, gate: Value, up: Value) -> Value:
        """silu(gate) * up, with the linear part of the gate, and the value, bent by tanh."""
        if self.value_bound:
            up = _bent(b, up, self.value_bound)
        return b.multiply(b.gated(gate, _bent(b, gate, self.gate_bound), "sigmoid"), up)


def _bent(b: Ops, x: Value, bound: float) -> Value:
    """bound * tanh(x / bound)."""
    return b.scale(b.activate(b.scale(x, 1.0 / bound), "tanh"), bound)
