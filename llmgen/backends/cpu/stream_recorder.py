"""Residuals of several streams as steps of a program; the same in both roles.

For generated tokens every thread computes all streams for itself, as with norms, which is cheaper than a barrier.
"""

from __future__ import annotations

import math
from typing import Any

from llmgen.backends.cpu.kernels import stream_arguments  # noqa: F401 - the tables of the steps
from llmgen.backends.cpu.plan import Access, Value
from llmgen.backends.cpu.recorder import Recorder
from llmgen.model.weights import Vector


class StreamRecorder(Recorder):
    """The part of the vocabulary that is about residuals of several streams."""

    def blend(self, x: Value, weights: Value | Vector, n_parts: int) -> Value:
        n_weights = weights.n if isinstance(weights, Value) else weights.values.size
        n_in = n_weights // n_parts
        out = self.whole_tokens(x.n // n_in * n_parts)
        accesses: list[Access] = [*self.token_reads(x), (out, out.partition, True)]
        table: dict[str, Any] = {"weights": weights}
        if isinstance(weights, Value):
            accesses += self.token_reads(weights)
        else:
            table = {"weights": self.binding.vector(weights), "weights_stride": 0}
        self.emit("streams:blend", accesses, x=x, **table, n_in=n_in, n_out=n_parts, n=x.n // n_in, out=out)
        return out

    def root_products(self, x: Value, y: Value, n_heads: int, scale: float, least: float) -> Value:
        out = self.whole_tokens(n_heads)
        accesses: list[Access] = [*self.token_reads(x, y), (out, out.partition, True)]
        self.emit(
            "streams:root_products",
            accesses,
            x=x,
            y=y,
            heads=n_heads,
            n=x.n // n_heads,
            scale=float(scale),
            least=float(least),
            out=out,
        )
        return out

    def sinkhorn(self, x: Value, rounds: int, eps: float) -> Value:
        out = self.whole_tokens(x.n)
        accesses: list[Access] = [*self.token_reads(x), (out, out.partition, True)]
        self.emit(
            "streams:sinkhorn", accesses, x=x, size=math.isqrt(x.n), rounds=rounds, eps=float(eps), out=out
        )
        return out
