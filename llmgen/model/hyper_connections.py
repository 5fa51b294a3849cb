"""Hyper-connections (arXiv:2409.19606): residuals of several streams, which each part of a layer reads and writes.

A part gets a weighted sum of the streams, and its result is added to each of them with a weight; the
weights depend on the token.  In the manifold-constrained form (mHC, arXiv:2512.24880) the streams are mixed
besides, by a matrix that is nearly doubly stochastic.  The formulas are those of llama.cpp's
src/models/deepseek4.cpp and hy-v4.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from llmgen.model.blocks import PreNorm
from llmgen.model.keys import Keys
from llmgen.model.ops import Ops, StateHandle, Value
from llmgen.model.rope import Rope
from llmgen.model.weights import Vector, Weights

MAX_STREAMS = 64
MAX_ROUNDS = 1000


@dataclass(frozen=True, kw_only=True)
class Streams(PreNorm):
    """What all forms share: the embedding is the beginning of each stream, and a block has two parts.

    A value of all streams has them side by side: [n_streams * n_embd].
    """

    n_streams: int

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        own.setdefault("n_streams", keys.whole("hyper_connection.count", high=MAX_STREAMS))
        return super().read(keys, **own)

    def embedded(self, b: Ops, w: Weights) -> Value:
        return b.blend(super().embedded(b, w), w.ones(self.n_streams), self.n_streams)

    def block(self, b: Ops, w: Weights, x: Value, layer: int, state: StateHandle, rope: Rope) -> Value:
        def attended(h: Value) -> Value:
            return self.attended(b, w, h, layer, state, rope)

        def fed_forward(h: Value) -> Value:
            return self.fed_forward(b, w, h, layer)

        x = self.connected(b, w, x, layer, "attn", attended)
        return self.connected(b, w, x, layer, "ffn", fed_forward)

    def connected(
        self, b: Ops, w: Weights, x: Value, layer: int, part: str, inner: Callable[[Value], Value]
    ) -> Value:
        """The streams after a part of a layer, "attn" or "ffn", which computes ``inner``."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class HyperConnections(Streams):
    """Weights by a matrix, a scale and a bias for what is read, what is written, and perhaps what is mixed."""

    mixes_streams: ClassVar[bool] = True
    """Whether the streams are mixed among themselves."""

    stream_eps: float
    stream_rounds: int
    """Rounds of the normalization that makes the mixing matrix doubly stochastic."""
    write_scale: float = 2.0
    """The largest weight with which a result is written."""
    write_eps: float = 0.0
    """What is added to that weight."""

    @classmethod
    def read(cls, keys: Keys, **own: Any) -> Self:
        rounds = (
            keys.whole("hyper_connection.sinkhorn_iterations", high=MAX_ROUNDS) if cls.mixes_streams else 0
        )
        own.setdefault("stream_eps", keys.real("hyper_connection.epsilon", high=1.0))
        return super().read(keys, stream_rounds=rounds, **own)

    def connected(
        self, b: Ops, w: Weights, x: Value, layer: int, part: str, inner: Callable[[Value], Value]
    ) -> Value:
        n, name = self.n_streams, f"blk.{layer}."
        sizes = (n, n, n * n) if self.mixes_streams else (n, n)
        read, write, *mixed = self.rates(b, w, x, f"{name}hc_{part}", sizes)
        norm = f"{name}attn_norm" if part == "attn" else name + self.ff_norm
        y = inner(self.norm(b, w, self.gathered(b, w, x, read), norm))
        if mixed:
            x = b.blend(x, b.sinkhorn(mixed[0], self.stream_rounds, self.stream_eps), n)
        weight = b.scale(b.activate(write, "sigmoid"), self.write_scale)
        return b.add(x, b.blend(y, self.raised(b, w, weight, self.write_eps), n))

    def rates(self, b: Ops, w: Weights, x: Value, name: str, sizes: tuple[int, ...]) -> list[Value]:
        """What weights are computed from, in parts of the given sizes."""
        flat = self.weightless_norm(b, w, x)
        matrices = w.matrix(f"{name}_fn", sum(sizes), x.n).parts(sizes)
        scales, bases = w.vector(f"{name}_scale", len(sizes)), w.vector_parts(f"{name}_base", sizes)

        def scale(i: int) -> Vector:
            return w.derived(f"{name}_scale[{i}]", lambda: np.repeat(scales.values[i], sizes[i]))

        return [
            b.add(b.multiply(b.linear(flat, matrix), scale(i)), bases[i]) for i, matrix in enumerate(matrices)
        ]

    def gathered(self, b: Ops, w: Weights, x: Value, rate: Value) -> Value:
        """The sum of the streams, weighted by the sigmoid of their rates: [n_embd]."""
        return b.blend(x, self.raised(b, w, b.activate(rate, "sigmoid"), self.stream_eps), 1)

    @staticmethod
    def raised(b: Ops, w: Weights, x: Value, eps: float) -> Value:
        """x + eps."""
        return b.add(x, w.derived(f"{eps}[{x.n}]", lambda: np.full(x.n, eps, np.float32))) if eps else x

    def outcome(self, b: Ops, w: Weights, x: Value) -> Value:
        [rate] = self.rates(b, w, x, "output_hc", (self.n_streams,))
        return super().outcome(b, w, self.gathered(b, w, x, rate))
