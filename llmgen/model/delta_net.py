"""Gated delta nets (Yang et al., arXiv:2412.06464): linear attention whose state replaces the value of a key."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from llmgen.model.hybrid import convolved
from llmgen.model.keys import MAX_HEADS, MAX_LAYERS, Keys
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.state_space import MAX_TAPS
from llmgen.model.states import Recurrent, State
from llmgen.model.weights import Matrix, Weights


def unit_heads(b: Ops, w: Weights, x: Value, n_heads: int, eps: float, scale: float = 1.0) -> Value:
    """Each head of x with a length of 1, times ``scale``: x * scale / sqrt(sum of squares + eps)."""
    n = x.n // n_heads
    factor = scale / math.sqrt(n)
    weights = w.derived(f"{factor}[{n}]", lambda: np.full(n, factor, np.float32))
    return b.head_rms_norm(x, weights, n_heads, eps / n)


@dataclass(frozen=True)
class DeltaNet:
    """The gated delta rule behind a short convolution of q, k and v, its result normed and gated."""

    gate: ClassVar[str] = "silu"
    """The activation of what the result is gated with."""

    taps: int
    n_heads: int
    """Heads of v."""
    n_keys: int
    """Heads of q and k."""
    key_dim: int
    value_dim: int
    eps: float
    tiled: bool
    """How heads of k serve those of v, see ``Ops.linear_attend``."""

    @classmethod
    def read(cls, keys: Keys, eps: float, *, tiled: bool) -> Self:
        """Raises UnsupportedModelError for sizes that do not fit together."""
        inner = keys.whole("ssm.inner_size")
        n_heads = keys.whole("ssm.time_step_rank", high=MAX_HEADS)
        n_keys = keys.whole("ssm.group_count", high=MAX_HEADS)
        if inner % n_heads:
            raise keys.fail("ssm.time_step_rank", n_heads, f"a divisor of the {inner} inner values")
        if n_heads % n_keys:
            raise keys.fail("ssm.group_count", n_keys, f"a divisor of the {n_heads} heads")
        taps = keys.whole("ssm.conv_kernel", low=2, high=MAX_TAPS)
        key_dim = keys.whole("ssm.state_size", high=MAX_HEADS)
        return cls(taps, n_heads, n_keys, key_dim, inner // n_heads, eps, tiled)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Values of q, k and v."""
        n_key = self.n_keys * self.key_dim
        return n_key, n_key, self.n_heads * self.value_dim

    def states(self) -> list[State]:
        """Its states: the last inputs of q, k and v, and the heads' state."""
        inputs = [Recurrent(n, self.taps - 1) for n in self.sizes]
        return [*inputs, Recurrent(self.value_dim, self.n_heads * self.key_dim)]

    def __call__(self, b: Ops, w: Weights, x: Value, layer: int, states: Sequence[StateHandle]) -> Value:
        name, n = f"blk.{layer}.ssm_", self.n_heads
        qkv, gate = self.inputs(b, w, x, layer)
        forget, write = self.rates(b, w, x, layer)
        q, k, v = convolved(b, w, qkv, f"{name}conv1d", self.taps, states[:-1])
        q = unit_heads(b, w, q, self.n_keys, self.eps, self.key_dim**-0.5)
        k = unit_heads(b, w, k, self.n_keys, self.eps)
        step = b.activate(b.add(forget, w.vector(f"{name}dt.bias", n)), "softplus")
        decay = b.activate(b.multiply(step, w.vector(f"{name}a", n)), "exp")
        write = b.activate(write, "sigmoid")
        y = b.linear_attend(q, k, v, decay, states[-1], n, write=write, delta=True, tiled=self.tiled)
        y = b.gated(gate, b.head_rms_norm(y, w.vector(f"{name}norm", self.value_dim), n, self.eps), self.gate)
        return b.linear(y, w.matrix(f"{name}out", x.n, y.n))

    def inputs(self, b: Ops, w: Weights, x: Value, layer: int) -> tuple[list[Value], Value]:
        """q, k and v before the convolution, and what the result is gated with."""
        qkv = w.matrix(f"blk.{layer}.attn_qkv", sum(self.sizes), x.n).parts(self.sizes)
        return [b.linear(x, part) for part in qkv], b.linear(
            x, w.matrix(f"blk.{layer}.attn_gate", self.sizes[2], x.n)
        )

    def rates(self, b: Ops, w: Weights, x: Value, layer: int) -> tuple[Value, Value]:
        """How much each head forgets and how much it writes, still without bias and bounds: [n_heads] each."""
        name = f"blk.{layer}.ssm_"
        forget, write = (w.matrix(name + which, self.n_heads, x.n) for which in ("alpha", "beta"))
        return b.linear(x, forget), b.linear(x, write)


@dataclass(frozen=True)
class KimiDeltaAttention:
    """A delta rule that forgets each row of its state at a rate of its own (Kimi Linear, arXiv:2510.26692)."""

    taps: int
    n_heads: int
    head_dim: int
    eps: float
    lower_bound: float = 0.0
    """Of the logarithm of the decay, which a sigmoid then approaches; 0: there is none."""
    negated: bool = False
    """Whether the file has the rates that such a sigmoid gets with a minus, as all have them without a bound."""
    unit_eps: float | None = None
    """The epsilon with which q and k get the length 1, where it is not that of the norm."""

    @classmethod
    def read(cls, keys: Keys, eps: float, lower_bound: float = 0.0, *, negated: bool = False) -> Self:
        """Raises UnsupportedModelError for sizes that no model can have."""
        taps = keys.whole("ssm.conv_kernel", low=2, high=MAX_TAPS)
        n_layers = keys.whole("block_count", high=MAX_LAYERS)
        n_heads = max(1, *keys.per_layer("attention.head_count", n_layers, high=MAX_HEADS))
        return cls(taps, n_heads, keys.whole("kda.head_dim", high=MAX_HEADS), eps, lower_bound, negated)

    @property
    def inner(self) -> int:
        """Values of all heads together."""
        return self.n_heads * self.head_dim

    def states(self) -> list[State]:
        """Its states: the last inputs of q, k and v, and the heads' state."""
        return [*(Recurrent(self.inner, self.taps - 1) for _ in "qkv"), Recurrent(self.head_dim, self.inner)]

    def __call__(self, b: Ops, w: Weights, x: Value, layer: int, states: Sequence[StateHandle]) -> Value:
        name, n = f"blk.{layer}.", self.n_heads
        inputs = zip("qkv", self.projections(w, x, layer), states, strict=False)
        q, k, v = (
            convolved(b, w, [b.linear(x, part)], f"{name}ssm_conv1d_{which}", self.taps, [state])[0]
            for which, part, state in inputs
        )
        eps = self.eps if self.unit_eps is None else self.unit_eps
        q, k = unit_heads(b, w, q, n, eps, self.head_dim**-0.5), unit_heads(b, w, k, n, eps)
        write = b.activate(b.linear(x, w.matrix(f"{name}ssm_beta", n, x.n)), "sigmoid")
        decay = self.decay(b, w, x, layer)
        y = b.linear_attend(q, k, v, decay, states[-1], n, write=write, delta=True)
        y = b.head_rms_norm(y, w.vector(f"{name}ssm_norm", self.head_dim), n, self.eps)
        y = b.gated(self.factored(b, w, x, f"{name}ssm_g"), y, "sigmoid")
        return b.linear(y, w.matrix(f"{name}attn_output", x.n, self.inner))

    def projections(self, w: Weights, x: Value, layer: int) -> list[Matrix]:
        """The matrices of q, k and v; biases that a file has for them are not used, as in llama.cpp's graph."""
        name, sizes = f"blk.{layer}.attn_", (self.inner,) * 3
        for part in ("q", "k", "v", "qkv"):
            w.skip(f"{name}{part}.bias")
        if w.has(f"{name}qkv"):
            return w.matrix(f"{name}qkv", sum(sizes), x.n).parts(sizes)
        return [w.matrix(f"{name}{part}", self.inner, x.n) for part in "qkv"]

    def decay(self, b: Ops, w: Weights, x: Value, layer: int) -> Value:
        """What is left of each row of the state: [n_heads * head_dim]."""
        name = f"blk.{layer}.ssm_"
        rate = b.add(self.factored(b, w, x, f"{name}f"), w.vector(f"{name}dt.bias", self.inner))
        heads = w.vector(f"{name}a", self.n_heads)
        sign = -1.0 if self.negated else 1.0
        a = w.derived(f"{name}a by row", lambda: sign * np.repeat(heads.values, self.head_dim))
        if self.lower_bound:
            bounded = b.activate(b.multiply(rate, a), "sigmoid")
            return b.activate(b.scale(bounded, self.lower_bound), "exp")
        return b.activate(b.multiply(b.activate(rate, "softplus"), a), "exp")

    def factored(self, b: Ops, w: Weights, x: Value, name: str) -> Value:
        """x times one matrix, or two with a few values between them: [n_heads * head_dim]."""
        if not w.has(f"{name}_b"):
            return b.linear(x, w.matrix(name if w.has(name) else f"{name}_a", self.inner, x.n))
        few = b.linear(x, w.matrix(f"{name}_a", self.head_dim, x.n))
        return b.linear(few, w.matrix(f"{name}_b", self.inner, self.head_dim))
