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
    def read(cls, keys: Keys, eps: float, groups: int = 0) -> Self:
        """``groups``: their number where no key tells it.  Raises UnsupportedModelError for sizes that do not fit."""
        inner = keys.whole("ssm.inner_size")
        n_heads = keys.whole("ssm.time_step_rank", high=MAX_HEADS)
        groups = groups or keys.whole("ssm.group_count", high=MAX_HEADS)
        if inner % n_heads:
            raise keys.fail("ssm.time_step_rank", n_heads, f"a divisor of the {inner} inner values")
        if n_heads % groups or inner % groups:
            raise keys.fail("ssm.group_count", groups, f"a divisor of the {n_heads} heads")
        taps = keys.whole("ssm.conv_kernel", low=2, high=MAX_TAPS)
        return cls(taps, inner, keys.whole("ssm.state_size", high=MAX_HEADS), n_heads, groups, eps)

    def states(self) -> list[State]:
        """Its states: the last inputs of x, B and C, and the heads' state."""
        inputs = [Recurrent(n, self.taps - 1) for n in self._convolved()]
        return [*inputs, self.memory()]

    def memory(self) -> Recurrent:
        """The heads' state."""
        return Recurrent(self.inner // self.n_heads, self.n_heads * self.state)

    def _convolved(self) -> tuple[int, int, int]:
        """Values of x, B and C."""
        return self.inner, self.groups * self.state, self.groups * self.state

    def __call__(self, b: Ops, w: Weights, x: Value, layer: int, states: Sequence[StateHandle]) -> Value:
        name, n = f"blk.{layer}.ssm_", self.n_heads
        sizes = (self.inner, *self._convolved(), n)
        z, *inputs, rate = w.matrix(f"{name}in", sum(sizes), x.n).parts(sizes)
        rate = b.linear(x, rate, w.vector(f"{name}dt.bias", n))
        parts = [b.linear(x, part) for part in inputs]
        v, k, q = convolved(b, w, parts, f"{name}conv1d", self.taps, states[:-1])
        y = self.scanned(b, w, q, k, v, rate, layer, states[-1])
        y = b.gated(b.linear(x, z), y, "silu")
        if w.has(f"{name}norm"):
            per_group = w.vector(f"{name}norm", self.inner // self.groups, self.groups)
            y = b.head_rms_norm(y, per_group, self.groups, self.eps)
        return b.linear(y, w.matrix(f"{name}out", x.n, self.inner))

    def scanned(
        self, b: Ops, w: Weights, q: Value, k: Value, v: Value, rate: Value, layer: int, state: StateHandle
    ) -> Value:
        """The scan; rate: the steps of the heads before the softplus."""
        name, n = f"blk.{layer}.ssm_", self.n_heads
        step = b.activate(rate, "softplus")
        decay = b.activate(b.multiply(step, w.vector(f"{name}a", n)), "exp")
        return b.linear_attend(q, k, v, decay, state, n, write=step, skip=w.vector(f"{name}d", n))


@dataclass(frozen=True)
class MambaLayer:
    """A short convolution, then a scan in which every column forgets in its own way, at a rate that each token sets."""

    taps: int
    inner: int
    state: int
    """Values of each column's state."""
    rank: int
    """Values between the inner ones and the step of each column."""
    eps: float
    normed: bool
    """Whether step, B and C have norms even where the file has no weights for them."""

    @classmethod
    def read(cls, keys: Keys, eps: float) -> Self:
        """Raises UnsupportedModelError for sizes that no model can have."""
        return cls(
            keys.whole("ssm.conv_kernel", low=2, high=MAX_TAPS),
            keys.whole("ssm.inner_size"),
            keys.whole("ssm.state_size", high=MAX_HEADS),
            keys.whole("ssm.time_step_rank", high=MAX_HEADS),
            eps,
            keys.flag("ssm.dt_b_c_rms", False),
        )

    def states(self) -> list[State]:
        """Its states: the last inputs, and the columns' state."""
        return [Recurrent(self.inner, self.taps - 1), Recurrent(self.inner, self.state)]

    def __call__(self, b: Ops, w: Weights, x: Value, layer: int, states: Sequence[StateHandle]) -> Value:
        name, n, size = f"blk.{layer}.ssm_", self.inner, self.state
        inner, z = (b.linear(x, part) for part in w.matrix(f"{name}in", 2 * n, x.n).parts((n, n)))
        [inner] = convolved(b, w, [inner], f"{name}conv1d", self.taps, states[:1])
        sizes = (self.rank, size, size)
        parts = zip(("dt", "b", "c"), w.matrix(f"{name}x", sum(sizes), n).parts(sizes), strict=True)
        rate, before, behind = (
            self._normed(b, w, b.linear(inner, part), name + which) for which, part in parts
        )
        rate = b.linear(rate, w.matrix(f"{name}dt", n, self.rank), w.vector(f"{name}dt.bias", n))
        step = b.activate(rate, "softplus")
        a = w.derived(f"{name}a.T", lambda: w.vector(f"{name}a", size, n).values.reshape(n, size).T)
        y = b.selective_scan(inner, step, a, before, behind, w.vector(f"{name}d", n), states[1])
        return b.linear(b.gated(z, y, "silu"), w.matrix(f"{name}out", x.n, n))

    def _normed(self, b: Ops, w: Weights, x: Value, name: str) -> Value:
        if w.has(f"{name}_norm"):
            return b.rms_norm(x, w.vector(f"{name}_norm", x.n), self.eps)
        return b.rms_norm(x, w.ones(x.n), self.eps) if self.normed else x
