"""Apertus of the Swiss AI Initiative (arXiv:2509.14233)."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from llmgen.model.archs import architecture
from llmgen.model.blocks import PreNorm
from llmgen.model.keys import MAX_LAYERS, Keys
from llmgen.model.ops import Ops, Value
from llmgen.model.weights import Weights


@dataclass(frozen=True)
class XIELU:
    """x > 0: a x^2 + beta x; else: b (e^x - 1 - x) + beta x (arXiv:2411.13010).

    Close below 0 the paper and ggml_compute_forward_xielu take e^eps for e^x, with an eps of -1e-6.
    """

    above: float
    below: float
    beta: float

    def __call__(self, b: Ops, w: Weights, x: Value) -> Value:
        low = b.at_most(x, 0.0)
        minus_one = w.derived(f"-1[{x.n}]", lambda: np.full(x.n, -1.0))
        curve = b.add(b.add(b.activate(low, "exp"), minus_one), b.scale(low, -1.0))
        curves = b.add(b.scale(b.activate(x, "relu_squared"), self.above), b.scale(curve, self.below))
        return b.add(curves, b.scale(x, self.beta))


@architecture("apertus")
@dataclass(frozen=True, kw_only=True)
class Apertus(PreNorm):
    """Llama with normed heads, and feed-forwards without a gate whose activation, xIELU, has numbers of each layer."""

    models = "Apertus 8B and 70B"
    normed_heads, ff_kind = True, "plain"

    activations: tuple[XIELU, ...]
    """For each layer."""

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        n_layers = keys.whole("block_count", high=MAX_LAYERS)
        numbers = copy(keys)
        numbers.architecture = "xielu"  # its keys have no architecture
        above, below = (numbers.per_layer_real(f"alpha_{end}", n_layers, low=-1e4, high=1e4) for end in "pn")
        betas = numbers.per_layer_real("beta", n_layers, low=-1e4, high=1e4)
        numbers.per_layer_real("eps", n_layers, low=-1e-5, high=0.0)
        activations = tuple(
            XIELU(_softplus(p), beta + _softplus(n), beta)
            for p, n, beta in zip(above, below, betas, strict=True)
        )
        return super().read(keys, activations=activations, **own)

    def projections(self, b: Ops, w: Weights, x: Value, layer: int) -> tuple[Value, Value, Value]:
        for part in "qk":  # llama.cpp loads a bias of these norms and does not use it
            w.skip(f"blk.{layer}.attn_{part}_norm.bias")
        return super().projections(b, w, x, layer)

    def fed_forward(self, b: Ops, w: Weights, x: Value, layer: int) -> Value:
        name = f"blk.{layer}.ffn_"
        up = self.ff_project(b, w, x, f"{name}up", self.ff(layer))
        return self.ff_project(b, w, self.activations[layer](b, w, up), f"{name}down", self.n_embd)


def _softplus(x: float) -> float:
    return float(np.logaddexp(0.0, x))
