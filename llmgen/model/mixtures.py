"""Mixtures of experts: feed-forwards of which each token takes a few (Shazeer et al., arXiv:1701.06538).

``Mixture`` stands among the bases of an architecture before the class that orders its blocks.
What an architecture does otherwise is a class variable or a method that it overrides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from llmgen.model.blocks import PreNorm
from llmgen.model.keys import MAX_FEED_FORWARD, MAX_LAYERS, Keys
from llmgen.model.ops import Choice, Ops, Scores, Value
from llmgen.model.weights import Weights

MAX_EXPERTS = 1 << 14
_GATING: tuple[Scores, ...] = ("softmax", "sigmoid", "softmax_chosen", "sqrt_softplus")
"""The scores that ``expert_gating_func`` numbers, from 1 on (src/llama-hparams.h of llama.cpp)."""


@dataclass(frozen=True, kw_only=True)
class Mixture(PreNorm):
    """Feed-forwards that are mixtures of experts, perhaps with a shared expert, which all tokens take.

    The class variables say which keys a file may have; the others have no effect.
    """

    mixture: ClassVar[bool] = True
    gating: ClassVar[Scores | None] = "softmax"
    """Which scores weigh the experts; None: as the file says."""
    gating_default: ClassVar[Scores | None] = None
    """The scores of a file without that key; None: such a file is refused."""
    normalized: ClassVar[bool | None] = True
    """Whether the weights of the chosen experts are divided by their sum; None: as the file says."""
    scaled: ClassVar[bool] = False
    """Whether the file may scale the weights."""
    expert_size: ClassVar[Literal["required", "divided", "given", "whole"]] = "required"
    """Where the width of an expert comes from.  required: a key; divided and given: where that is missing, the
    dense feed-forward's width, divided by the experts that a token takes or as it is; whole: always as it is."""
    shared_size: ClassVar[Literal["", "count", "key", "both", "dense"]] = ""
    """Where the width of the shared expert comes from.  "": there is none; count: an expert's times a count
    in the file; key: a key; both: a key, else an expert's, times the count; dense: a key, else the dense width."""
    may_be_dense: ClassVar[bool] = False
    """Whether a file without experts is a dense model, or refused."""
    choice_bias: ClassVar[str] = "exp_probs_b.bias"
    """The tensor that a file may have to add to the scores, for the choice only."""
    leading_dense: ClassVar[bool] = False
    """Whether the first layers may be dense."""

    n_experts: int
    """0: the model is dense."""
    n_used: int
    expert_groups: tuple[int, int]
    """How many groups there are, and how many of them a token chooses its experts from."""
    expert_scores: Scores
    weights_normalized: bool
    weights_scale: float
    n_expert_ff: int
    n_shared_ff: int
    """Values inside the shared expert; 0: there is none."""
    n_dense_layers: int
    """Layers at the beginning whose feed-forward is dense."""

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        default = 0 if cls.may_be_dense else None
        n_experts = keys.whole("expert_count", default, 0 if cls.may_be_dense else 1, MAX_EXPERTS)
        n_used = keys.whole("expert_used_count", 0, 0, MAX_EXPERTS)
        if not min(n_experts, 1) <= n_used <= n_experts:
            raise keys.refuse("expert_used_count", f"a number from 1 to the {n_experts} experts")
        n_expert_ff = cls.read_expert_ff(keys, n_used)
        norm, scale = cls.normalized, 1.0
        if norm is None:
            norm = keys.flag("expert_weights_norm", False)
        if cls.scaled:
            scale = keys.real("expert_weights_scale", 0.0) or 1.0
        dense = keys.whole("leading_dense_block_count", 0, 0, MAX_LAYERS) if cls.leading_dense else 0
        routing: dict[str, Any] = {
            "n_experts": n_experts,
            "n_used": n_used,
            "expert_groups": _groups(keys, n_experts, n_used),
            "expert_scores": cls.read_scores(keys),
            "weights_normalized": norm,
            "weights_scale": scale,
            "n_expert_ff": n_expert_ff,
            "n_shared_ff": cls.read_shared_ff(keys, n_expert_ff),
            "n_dense_layers": dense if n_experts else MAX_LAYERS,
        }
        return super().read(keys, **(routing | own))

    @classmethod
    def read_scores(cls, keys: Keys) -> Scores:
        """Which scores weigh the experts."""
        if cls.gating is not None:
            return cls.gating
        number = keys.whole("expert_gating_func", 0, 0, 1 << 16)
        if number == 0 and cls.gating_default is not None:
            return cls.gating_default
        if not 1 <= number <= len(_GATING):
            raise keys.refuse("expert_gating_func", f"a number from 1 to {len(_GATING)}")
        return _GATING[number - 1]

    @classmethod
    def read_expert_ff(cls, keys: Keys, n_used: int) -> int:
        """The values inside an expert."""
        key = "expert_feed_forward_length"
        if cls.expert_size == "required":
            return keys.whole(key, high=MAX_FEED_FORWARD)
        if cls.expert_size != "whole" and (given := keys.whole(key, 0, 0, MAX_FEED_FORWARD)):
            return given
        whole = keys.whole("feed_forward_length", high=MAX_FEED_FORWARD)
        return whole // n_used if cls.expert_size == "divided" and n_used else whole

    @classmethod
    def read_shared_ff(cls, keys: Keys, n_expert_ff: int) -> int:
        """The values inside the shared expert."""
        count = given = 0
        if cls.shared_size in ("count", "both"):
            count = keys.whole("expert_shared_count", 0, 0, MAX_EXPERTS)
        if cls.shared_size in ("key", "both", "dense"):
            given = keys.whole("expert_shared_feed_forward_length", 0, 0, MAX_FEED_FORWARD)
        if cls.shared_size == "dense":
            return given or keys.whole("feed_forward_length", high=MAX_FEED_FORWARD)
        return given if cls.shared_size == "key" else (given or n_expert_ff) * count

    def is_dense(self, w: Weights, layer: int) -> bool:
        """Whether a layer's feed-forward is dense."""
        return layer < self.n_dense_layers

    def fed_forward(self, b: Ops, w: Weights, x: Value, layer: int) -> Value:
        if self.is_dense(w, layer):
            return super().fed_forward(b, w, x, layer)
        y = self.routed(b, w, x, layer)
        return b.add(y, self.shared(b, w, x, layer)) if self.n_shared_ff else y

    def routed(self, b: Ops, w: Weights, x: Value, layer: int) -> Value:
        """The mixture alone: [n_embd]."""
        choice = self.chosen(b, w, self.router_logits(b, w, x, layer), layer)
        return b.mix(self.experts(b, w, x, choice, layer), choice)

    def router_logits(self, b: Ops, w: Weights, x: Value, layer: int) -> Value:
        """The router's logits: [n_experts]."""
        return self.project(b, w, x, f"blk.{layer}.ffn_gate_inp", self.n_experts)

    def chosen(self, b: Ops, w: Weights, logits: Value, layer: int) -> Choice:
        """The experts of each token."""
        return b.choose_experts(
            logits,
            self.n_used,
            self.expert_scores,
            bias=w.optional_vector(f"blk.{layer}.{self.choice_bias}", self.n_experts),
            groups=self.expert_groups,
            normalize=self.weights_normalized,
            scale=self.weights_scale,
        )

    def experts(self, b: Ops, w: Weights, x: Value, choice: Choice, layer: int, kind: str = "exps") -> Value:
        """down(activation(gate x) * up x) of each chosen expert, without a gate where the file has none."""
        name, n_ff = f"blk.{layer}.ffn_", self.n_expert_ff
        if w.has(f"{name}gate_up_{kind}"):
            gate, up = self.gate_and_up(b, w, x, choice, f"{name}gate_up_{kind}", n_ff)
            inner = self.expert_gated(b, gate, up, layer)
        else:
            up = self.expert_project(b, w, x, choice, f"{name}up_{kind}", n_ff)
            if self.is_gated(w, f"{name}gate_{kind}"):
                gate = self.expert_project(b, w, x, choice, f"{name}gate_{kind}", n_ff)
                inner = self.expert_gated(b, gate, up, layer)
            else:
                inner = b.activate(up, self.activation)
        return self.expert_project(b, w, inner, choice, f"{name}down_{kind}", x.n)

    def is_gated(self, w: Weights, name: str) -> bool:
        """Whether there is a gate ``name``: where the file has it, or where the activation is none without."""
        return w.has(name) or self.activation == "swiglu_oai"

    def expert_gated(self, b: Ops, gate: Value, up: Value, layer: int) -> Value:
        """The gated activation inside an expert."""
        return b.gated(gate, up, self.activation)

    def expert_project(self, b: Ops, w: Weights, x: Value, choice: Choice, name: str, n_rows: int) -> Value:
        """x times the chosen experts' matrices of the tensor ``name``, with the scales and biases the file has."""
        matrices = w.experts(name, self.n_experts, n_rows, x.n)
        bias = f"{name}.bias"
        return b.expert_linear(
            x,
            matrices,
            choice,
            w.matrix(bias, self.n_experts, n_rows) if w.has(bias) else None,
            w.optional_vector(f"{name}.scale", self.n_experts),
        )

    def gate_and_up(
        self, b: Ops, w: Weights, x: Value, choice: Choice, name: str, n_ff: int
    ) -> tuple[Value, Value]:
        """Both projections of experts that have them as one matrix, gate first."""
        both = w.experts(name, self.n_experts, 2 * n_ff, x.n)
        gate, up = (b.expert_linear(x, both.rows(at, n_ff), choice) for at in (0, n_ff))
        return gate, up

    def shared(self, b: Ops, w: Weights, x: Value, layer: int) -> Value:
        """The shared expert, which all tokens take: [n_embd]."""
        name = f"blk.{layer}.ffn_"
        up = self.ff_project(b, w, x, f"{name}up_shexp", self.n_shared_ff)
        if self.is_gated(w, f"{name}gate_shexp"):
            gate = self.ff_project(b, w, x, f"{name}gate_shexp", self.n_shared_ff)
            inner = self.shared_gated(b, gate, up, layer)
        else:
            inner = b.activate(up, self.activation)
        return self.ff_project(b, w, inner, f"{name}down_shexp", self.n_embd)

    def shared_gated(self, b: Ops, gate: Value, up: Value, layer: int) -> Value:
        """The gated activation inside the shared expert."""
        return b.gated(gate, up, self.activation)


@dataclass(frozen=True, kw_only=True)
class ClampedExperts(Mixture):
    """Inside experts the gate has an upper limit, and what it gates one for its magnitude."""

    clamps: tuple[float, ...]
    """These limits for each layer; 0: none."""

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        n_layers = keys.whole("block_count", high=MAX_LAYERS)
        own.setdefault("clamps", keys.per_layer_real("swiglu_clamp_exp", n_layers))
        return super().read(keys, **own)

    def expert_gated(self, b: Ops, gate: Value, up: Value, layer: int) -> Value:
        return super().expert_gated(b, *clamped(b, gate, up, self.clamps[layer]), layer)


def clamped(b: Ops, gate: Value, up: Value, limit: float) -> tuple[Value, Value]:
    """A gate and what it gates within a limit; llama.cpp takes one of no more than 1e-6 for none."""
    return (b.at_most(gate, limit), b.clamp(up, limit)) if limit > 1e-6 else (gate, up)


class GatedShared(Mixture):
    """The shared expert is weighted by a gate of each token."""

    shared_size = "dense"

    def shared(self, b: Ops, w: Weights, x: Value, layer: int) -> Value:
        gate = b.linear(x, w.matrix(f"blk.{layer}.ffn_gate_inp_shexp", 1, self.n_embd))
        return b.gate_heads(super().shared(b, w, x, layer), gate)


class ByTensors(Mixture):
    """A layer is a mixture if the file has a router for it; dense matrices beside one are not used."""

    def is_dense(self, w: Weights, layer: int) -> bool:
        return not w.has(f"blk.{layer}.ffn_gate_inp")

    def routed(self, b: Ops, w: Weights, x: Value, layer: int) -> Value:
        for part in ("gate", "up", "down"):
            w.skip(f"blk.{layer}.ffn_{part}")
        return super().routed(b, w, x, layer)


def _groups(keys: Keys, n_experts: int, n_used: int) -> tuple[int, int]:
    """Groups of experts, and out of how many a token's are chosen; (1, 1): no groups.

    Of the best groups the two best experts count, so there must be two in each.
    """
    n_groups = keys.whole("expert_group_count", 0, 0, MAX_EXPERTS)
    if n_groups <= 1:
        return 1, 1
    if n_experts % n_groups or n_experts < 2 * n_groups:
        raise keys.refuse(
            "expert_group_count", f"a divisor of {n_experts} with two experts or more in a group"
        )
    n_groups_used = keys.whole("expert_group_used_count", low=1, high=n_groups)
    if n_groups_used * (n_experts // n_groups) < n_used:
        raise keys.refuse("expert_group_used_count", f"groups with {n_used} experts together")
    return n_groups, n_groups_used
