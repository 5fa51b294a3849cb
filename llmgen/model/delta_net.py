"""Gated delta nets (Yang et al., arXiv:2412.06464): linear attention that replaces what it has under a key."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from llmgen.model.hybrid import convolved
from llmgen.model.keys import MAX_HEADS, Keys
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.state_space import MAX_TAPS
from llmgen.model.states import Recurrent, State
from llmgen.model.weights import Weights


def unit_heads(b: Ops, w: Weights, x: Value, n_heads: int, eps: float, scale: float = 1.0) -> Value:
    """Each head of x with a length of 1, times ``scale``: x * scale / sqrt(sum of squares + eps)."""
    n = x.n // n_heads
    factor = scale / math.sqrt(n)
    weights = w.derived(f"{factor}[{n}]", lambda: np.full(n, factor, np.float32))
    return b.head_rms_norm(x, weights, n_heads, eps / n)


@dataclass(frozen=True)
class DeltaNet:
    """The gated delta rule behind a short convolution of q, k and v, its result normed and gated."""

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
        """What it remembers: the last inputs of q, k and v, and the heads' state."""
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
        decay = b.activate(b.multiply(step, w.column(f"{name}a", n)), "exp")
        write = b.activate(write, "sigmoid")
        y = b.linear_attend(q, k, v, decay, states[-1], n, write=write, delta=True, tiled=self.tiled)
        y = b.gated(gate, b.head_rms_norm(y, w.vector(f"{name}norm", self.value_dim), n, self.eps), "silu")
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
