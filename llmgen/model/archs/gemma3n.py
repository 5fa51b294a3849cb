"""Gemma 3n (llama.cpp's src/models/gemma3n.cpp)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from llmgen.model.archs import architecture
from llmgen.model.keys import MAX_CONTEXT, Keys
from llmgen.model.layer_inputs import LayerInputs
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.rope import Rope
from llmgen.model.weights import Vector, Weights

_STREAMS = 4
_RANK = 64
"""Values between the two matrices of a layer's detour around attention (LAuReL, arXiv:2411.07501)."""


@architecture("gemma3n")
@dataclass(frozen=True, kw_only=True)
class Gemma3n(LayerInputs):
    """Four residual streams of which a layer computes the first and predicts the others (AltUp, arXiv:2301.13310);
    layers with inputs of their own; the last layers share keys and values; sparse feed-forwards in the first."""

    models = "Gemma 3n E2B and E4B (text)"
    window_default, window_period = None, 5
    kept_above: ClassVar[float] = 1.6448533535003662
    """How many standard deviations a gate must lie above the mean in a sparse feed-forward: 95% do not."""
    n_sparse: ClassVar[int] = 10
    """Layers with a sparse feed-forward."""

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        model = super().read(
            keys,
            window=keys.whole("attention.sliding_window", high=MAX_CONTEXT),
            own_keys=min(20, keys.whole("block_count")),
            n_layer_input=256,
            final_logit_softcapping=30.0,
            **own,
        )
        model.check_sources(keys)
        return model

    def ropes(self, b: Ops, w: Weights) -> Sequence[Rope]:
        local, whole = self.local_rope(self.n_rot), self.rope()
        return [local if is_local else whole for is_local in self.local]

    def forward(self, b: Ops, w: Weights, states: Sequence[StateHandle]) -> None:
        seen, ropes = self.of_layers(states), self.ropes(b, w)
        x = self.embedded(b, w)
        inputs = self.layer_inputs(b, w, x)
        streams = self.spread(b, w, x)
        for layer in self.layers:
            streams = self.predicted(b, w, streams, layer)
            active = self.active(b, streams)
            y = self.block(b, w, active, layer, seen[layer], ropes[layer])
            streams = self.corrected(b, w, streams, b.add(y, b.scale(active, -1.0)), y, layer)
            h = b.multiply(self.active(b, streams), w.vector(f"blk.{layer}.altup_correct_scale", self.n_embd))
            assert inputs is not None
            others = w.derived("all streams but the first", lambda: np.array([0.0] + [1.0] * (_STREAMS - 1)))
            more = self.from_input(b, w, h, layer, inputs)
            streams = b.add(streams, b.blend(more, others, _STREAMS))
        self.finish(b, w, self.outcome(b, w, self.gathered(b, w, streams)))

    # ---- the streams, side by side: [4 * n_embd] ---------------------------------------

    def spread(self, b: Ops, w: Weights, x: Value) -> Value:
        """The embedding as the first stream, and three projections of it, as long as it is."""
        projected = self.projected(b, w, b.blend(x, w.ones(_STREAMS - 1), _STREAMS - 1), "altup_proj", x)
        first = w.derived("first stream", lambda: np.eye(1, _STREAMS).reshape(-1))
        behind = w.derived("behind the first stream", lambda: np.eye(_STREAMS - 1, _STREAMS, 1).reshape(-1))
        return b.add(b.blend(x, first, _STREAMS), b.blend(projected, behind, _STREAMS))

    def gathered(self, b: Ops, w: Weights, streams: Value) -> Value:
        """The mean of the first stream and of projections of the others, as long as it is: [n_embd]."""
        first, n = self.active(b, streams), self.n_embd
        others = b.head_part(streams, 1, n, (_STREAMS - 1) * n)
        projected = self.projected(b, w, others, "altup_unembd_proj", first)
        total = b.add(first, b.blend(projected, w.ones(_STREAMS - 1), 1))
        return b.scale(total, 1 / _STREAMS)

    def active(self, b: Ops, streams: Value) -> Value:
        """The stream that layers compute."""
        return b.head_part(streams, 1, 0, self.n_embd)

    def projected(self, b: Ops, w: Weights, x: Value, name: str, like: Value) -> Value:
        """Each of three streams times a matrix of its own, and with the length of ``like``.

        A norm without epsilon makes their mean squares 1, and those of ``like`` are the product of its values
        and its normed values, divided by their number.
        """
        n = self.n_embd
        y = b.linear_heads(x, w.head_matrices(name, _STREAMS - 1, n, n))
        y = b.head_rms_norm(y, w.ones(n), _STREAMS - 1, 0.0)
        return b.blend(y, self.product(b, like, b.rms_norm(like, w.ones(n), 0.0)), 1)

    @staticmethod
    def product(b: Ops, x: Value, y: Value) -> Value:
        """The mean of x * y, value by value: [1]."""
        return b.scale(b.blend(x, y, 1), 1 / x.n)

    def rates(self, b: Ops, w: Weights, x: Value, layer: int) -> Value:
        """What the weights of streams are computed from: [4]."""
        name = f"blk.{layer}.altup_router"
        h = b.scale(self.norm(b, w, x, f"{name}_norm"), 1 / self.n_embd)
        return b.activate(self.project(b, w, h, name, _STREAMS), "tanh")

    def predicted(self, b: Ops, w: Weights, streams: Value, layer: int) -> Value:
        """The streams plus weighted sums of them."""
        rates = self.rates(b, w, self.active(b, streams), layer)
        weights = self.project(b, w, rates, f"blk.{layer}.altup_predict_coef", _STREAMS * _STREAMS)
        # the file has those of each sum together, blend takes those of each stream
        turned = b.blend(weights, w.derived("turned weights", _turned), _STREAMS * _STREAMS)
        return b.add(streams, b.blend(streams, turned, _STREAMS))

    def corrected(self, b: Ops, w: Weights, streams: Value, news: Value, y: Value, layer: int) -> Value:
        """The predicted streams plus ``news``, what the layer's result y adds to its prediction, weighted."""
        rates = self.rates(b, w, y, layer)
        weights = self.project(b, w, rates, f"blk.{layer}.altup_correct_coef", _STREAMS)
        return b.add(streams, b.blend(news, b.add(weights, w.ones(_STREAMS)), _STREAMS))

    # ---- a layer -----------------------------------------------------------------------

    def block(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        name = f"blk.{layer}."
        h = self.norm(b, w, x, f"{name}attn_norm")
        detour = self.project(b, w, h, f"{name}laurel_l", _RANK)
        detour = self.norm(
            b, w, self.project(b, w, detour, f"{name}laurel_r", x.n), f"{name}laurel_post_norm"
        )
        a = self.norm(b, w, self.attended(b, w, h, layer, state, rope), f"{name}post_attention_norm")
        x = b.scale(b.add(b.add(a, x), b.add(detour, h)), math.sqrt(0.5))
        f = self.feed_forward(b, w, self.norm(b, w, x, f"{name}ffn_norm"), layer, self.activation)
        return b.add(self.norm(b, w, f, f"{name}post_ffw_norm"), x)

    def feed_forward(self, b: Ops, w: Weights, x: Value, layer: int, activation: str = "gelu") -> Value:
        name = f"blk.{layer}.ffn_"
        gate, up = (self.project(b, w, x, f"{name}{part}", self.ff(layer)) for part in ("gate", "up"))
        if layer < self.n_sparse:
            gate = self.sparse(b, w, gate)
        return self.project(b, w, b.gated(gate, up, activation), f"{name}down", self.n_embd)

    def sparse(self, b: Ops, w: Weights, x: Value) -> Value:
        """max(0, x - mean - kept_above * std), with the standard deviation of n - 1.

        A layer norm without epsilon divides by that of n, which comes back as the mean of x times its normed values.
        """
        n = x.n
        z = b.layer_norm(x, w.ones(n), None, 0.0)
        above = self.kept_above * math.sqrt(n / (n - 1))
        border: Vector = w.derived(f"{-above}[{n}]", lambda: np.full(n, -above))
        return b.blend(b.activate(b.add(z, border), "relu"), self.product(b, x, z), 1)


def _turned() -> np.ndarray:
    """For ``Ops.blend``: of [4][4] values those of the other diagonal half."""
    places = np.arange(_STREAMS * _STREAMS).reshape(_STREAMS, _STREAMS).T.reshape(-1)
    return np.eye(_STREAMS * _STREAMS)[places].T.reshape(-1)
