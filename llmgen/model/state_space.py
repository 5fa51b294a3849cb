"""State space layers: Mamba (Gu and Dao, arXiv:2312.00752) and Mamba 2 (Dao and Gu, arXiv:2405.21060)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from llmgen.model.hybrid import convolved
from llmgen.model.keys import MAX_HEADS, Keys
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.states import Recurrent, State
from llmgen.model.weights import Weights

MAX_TAPS = 64
"""Tokens that a convolution may see."""


@dataclass(frozen=True)
class Mamba2Layer:
    """Linear attention whose heads forget at a rate that each token sets; its inputs pass a short convolution.

    In the paper's words q, k and v are C, B and x, and the step says how much is forgotten and
    how much is written.
    """

    taps: int
    inner: int
    """Values of all heads together."""
    state: int
    """Rows of a head's state."""
    n_heads: int
    groups: int
    """Heads of B and C."""
    eps: float
    """Of the norm over each group's values."""

    @classmethod
    def read(cls, keys: Keys, eps: float) -> Self:
        """Raises UnsupportedModelError for sizes that do not fit together."""
        inner = keys.whole("ssm.inner_size")
        n_heads = keys.whole("ssm.time_step_rank", high=MAX_HEADS)
        groups = keys.whole("ssm.group_count", high=MAX_HEADS)
        if inner % n_heads:
            raise keys.fail("ssm.time_step_rank", n_heads, f"a divisor of the {inner} inner values")
        if n_heads % groups or inner % groups:
            raise keys.fail("ssm.group_count", groups, f"a divisor of the {n_heads} heads")
        taps = keys.whole("ssm.conv_kernel", low=2, high=MAX_TAPS)
        return cls(taps, inner, keys.whole("ssm.state_size", high=MAX_HEADS), n_heads, groups, eps)

    def states(self) -> list[State]:
        """What it remembers: the last inputs of x, B and C, and the heads' state."""
        inputs = [Recurrent(n, self.taps - 1) for n in self._convolved()]
        return [*inputs, Recurrent(self.inner // self.n_heads, self.n_heads * self.state)]

    def _convolved(self) -> tuple[int, int, int]:
        """Values of x, B and C."""
        return self.inner, self.groups * self.state, self.groups * self.state

    def __call__(self, b: Ops, w: Weights, x: Value, layer: int, states: Sequence[StateHandle]) -> Value:
        """[x.n] -> [x.n]."""
        name, n = f"blk.{layer}.ssm_", self.n_heads
        sizes = (self.inner, *self._convolved(), n)
        z, *inputs, rate = w.matrix(f"{name}in", sum(sizes), x.n).parts(sizes)
        step = b.activate(b.linear(x, rate, w.vector(f"{name}dt.bias", n)), "softplus")
        decay = b.activate(b.multiply(step, w.column(f"{name}a", n)), "exp")
        parts = [b.linear(x, part) for part in inputs]
        v, k, q = convolved(b, w, parts, f"{name}conv1d", self.taps, states[:-1])
        skip = w.column(f"{name}d", n)
        y = b.linear_attend(q, k, v, decay, states[-1], n, write=step, skip=skip)
        y = b.gated(b.linear(x, z), y, "silu")
        if w.has(f"{name}norm"):
            per_group = w.vector(f"{name}norm", self.inner // self.groups, self.groups)
            y = b.head_rms_norm(y, per_group, self.groups, self.eps)
        return b.linear(y, w.matrix(f"{name}out", x.n, self.inner))
