"""The vocabulary of ``model.ops``, computed at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from llmgen.backends.numpy import functions
from llmgen.backends.numpy.attention_ops import AttentionOps
from llmgen.backends.numpy.functions import Array
from llmgen.backends.numpy.run import Choice, Value
from llmgen.backends.numpy.states import RecurrentState
from llmgen.gguf import GGMLType
from llmgen.model.ngrams import NGrams
from llmgen.model.ops import Scores
from llmgen.model.rope import Rope
from llmgen.model.weights import Experts, Matrix, Vector

FLOAT_TYPES = (GGMLType.F64, GGMLType.F32, GGMLType.F16, GGMLType.BF16)


class NumpyOps(AttentionOps):
    """All operations of a run; their docstrings are in ``model.ops``."""

    def embed(self, w: Matrix, scale: float = 1.0) -> Value:
        dtype = self._precision.dtype
        return Value(self._matrices[w][self._ids].astype(dtype) * dtype(scale * w.factor))

    def embed_positions(self, w: Matrix) -> Value:
        return Value(self._matrices[w][self._positions].astype(self._precision.dtype))

    def embed_ngrams(self, w: Matrix, ngrams: NGrams, state: RecurrentState) -> Value:
        before = state.values[0, : ngrams.size - 1]
        rows, before = functions.ngram_rows(self._ids, before.astype(np.int64), ngrams)
        state.values[0, : ngrams.size - 1] = before
        return self._flat(self._matrices[w][rows].astype(self._precision.dtype))

    def rms_norm(self, x: Value, w: Vector, eps: float) -> Value:
        return Value(functions.rms_norm(x.x, w.values, eps))

    def layer_norm(self, x: Value, w: Vector, bias: Vector | None, eps: float) -> Value:
        return Value(functions.layer_norm(x.x, w.values, None if bias is None else bias.values, eps))

    def head_rms_norm(self, x: Value, w: Vector, n_heads: int, eps: float) -> Value:
        return self._flat(functions.rms_norm(self._heads(x, n_heads), w.values, eps))

    def head_layer_norm(self, x: Value, w: Vector, n_heads: int, eps: float) -> Value:
        return self._flat(functions.layer_norm(self._heads(x, n_heads), w.values, None, eps))

    def rope(
        self,
        x: Value,
        n_heads: int,
        rope: Rope,
        scale: float = 1.0,
        position_scale: np.ndarray | None = None,
    ) -> Value:
        rows = rope.rows(self._position, self._position + len(self._ids), x.x.dtype)
        y = functions.rotate(self._heads(x, n_heads), rows, rope.neox, rope.first) * x.x.dtype.type(scale)
        if position_scale is not None:
            y = y * position_scale[self._positions, None, None].astype(y.dtype)
        return self._flat(y)

    def linear_heads(self, x: Value, w: Sequence[Matrix], turned: bool = False) -> Value:
        heads = self._heads(x, len(w))
        if turned:
            parts = [heads[:, h] @ self._matrices[m].astype(x.x.dtype) for h, m in enumerate(w)]
        else:
            parts = [self.linear(Value(heads[:, h]), m).x for h, m in enumerate(w)]
        return Value(np.concatenate(parts, axis=1))

    def linear(self, x: Value, w: Matrix, bias: Vector | None = None) -> Value:
        entering = x.x
        if self._precision.int8_activations and w.tensor.type not in FLOAT_TYPES:
            entering = functions.round_activations(entering).astype(entering.dtype)
        y = entering @ self._matrices[w].astype(entering.dtype).T
        y *= y.dtype.type(w.factor)
        return Value(y if bias is None else y + bias.values.astype(y.dtype))

    def add(self, x: Value, y: Value | Vector) -> Value:
        return Value(x.x + self._second(y))

    def multiply(self, x: Value, y: Value | Vector) -> Value:
        return Value(x.x * self._second(y))

    def scale(self, x: Value, factor: float) -> Value:
        return Value(x.x * x.x.dtype.type(factor))

    def clamp(self, x: Value, limit: float) -> Value:
        return Value(np.clip(x.x, -limit, limit))

    def at_most(self, x: Value, limit: float) -> Value:
        return Value(np.minimum(x.x, limit))

    def activate(self, x: Value, activation: str) -> Value:
        return Value(functions.ACTIVATIONS[activation](x.x))

    def gated(self, gate: Value, up: Value, activation: str) -> Value:
        if activation == "swiglu_oai":
            return Value(functions.swiglu_oai(gate.x, up.x))
        return Value(self.activate(gate, activation).x * up.x)

    def gate_heads(self, x: Value, gate: Value, activation: str = "sigmoid") -> Value:
        return self._flat(self._heads(x, gate.n) * functions.ACTIVATIONS[activation](gate.x)[..., None])

    def head_part(self, x: Value, n_heads: int, first: int, count: int) -> Value:
        return self._flat(self._heads(x, n_heads)[..., first : first + count])

    def convolve(self, x: Value, w: Vector, bias: Vector | None, state: RecurrentState) -> Value:
        y, state.values = functions.convolution(x.x, w.values.astype(x.x.dtype), state.values)
        return Value(y if bias is None else y + bias.values.astype(y.dtype))

    def linear_attend(
        self,
        q: Value,
        k: Value,
        v: Value,
        decay: Value | Vector,
        state: RecurrentState,
        n_heads: int,
        *,
        write: Value | None = None,
        skip: Vector | None = None,
        delta: bool = False,
        tiled: bool = False,
    ) -> Value:
        memory = state.values.reshape(n_heads, -1, state.values.shape[1])
        n_own = q.n // memory.shape[1]
        own = [h % n_own if tiled else h // (n_heads // n_own) for h in range(n_heads)]
        queries, keys = (self._heads(value, n_own)[:, own] for value in (q, k))
        values, ones = self._heads(v, n_heads), np.ones((len(v.x), 1), v.x.dtype)
        y, memory = functions.linear_attention(
            queries,
            keys,
            values,
            (ones * self._second(decay)).reshape(len(v.x), n_heads, -1),
            ones * np.ones(n_heads) if write is None else write.x,
            memory,
            delta,
        )
        state.values = memory.reshape(state.values.shape)
        return self._flat(y if skip is None else y + skip.values.astype(y.dtype)[:, None] * values)

    def selective_scan(
        self, x: Value, step: Value, a: Vector, b: Value, c: Value, skip: Vector, state: RecurrentState
    ) -> Value:
        dtype = x.x.dtype
        y, state.values = functions.selective_scan(
            x.x, step.x, a.values.astype(dtype), b.x, c.x, state.values
        )
        return Value(y + skip.values.astype(dtype) * x.x)

    def blend(self, x: Value, weights: Value | Vector, n_parts: int) -> Value:
        table = (np.ones((len(x.x), 1), x.x.dtype) * self._second(weights)).reshape(len(x.x), -1, n_parts)
        return self._flat(np.einsum("tij,tin->tjn", table, self._heads(x, table.shape[1])))

    def root_products(self, x: Value, y: Value, n_heads: int, scale: float, least: float) -> Value:
        products = scale * np.sum(self._heads(x, n_heads) * self._heads(y, n_heads), axis=2)
        return Value(np.sign(products) * np.sqrt(np.maximum(np.abs(products), least)))

    def sinkhorn(self, x: Value, rounds: int, eps: float) -> Value:
        size = math.isqrt(x.n)
        return self._flat(functions.sinkhorn(x.x.reshape(len(x.x), size, size), rounds, eps))

    def choose_experts(
        self,
        logits: Value,
        n_used: int,
        scores: Scores = "softmax",
        *,
        bias: Vector | None = None,
        groups: tuple[int, int] = (1, 1),
        normalize: bool = False,
        scale: float = 1.0,
        shared_by: int = 1,
    ) -> Choice:
        shift = None if bias is None else bias.values
        return Choice(*functions.choose(logits.x, n_used, scores, shift, groups, normalize, scale, shared_by))

    def look_up_experts(
        self, logits: Value, table: np.ndarray, *, normalize: bool = False, scale: float = 1.0
    ) -> Choice:
        return Choice(*functions.looked_up(logits.x, self._ids, table, normalize, scale))

    def expert_linear(
        self,
        x: Value,
        w: Experts,
        choice: Choice,
        bias: Matrix | None = None,
        scales: Vector | None = None,
    ) -> Value:
        entering = x.x if x.x.ndim == 3 else np.repeat(x.x[:, None], choice.ids.shape[1], axis=1)
        y: Array = np.empty((*choice.ids.shape, w.n_rows), entering.dtype)
        for expert in np.unique(choice.ids):
            chose = choice.ids == expert
            y[chose] = self.linear(Value(entering[chose]), w.of(expert)).x
        if scales is not None:
            y = y * scales.values[choice.ids, None].astype(y.dtype)
        return Value(y if bias is None else y + self._matrices[bias][choice.ids].astype(y.dtype))

    def spread(self, x: Value, choice: Choice) -> Value:
        return Value(x.x[:, None] * choice.weights[..., None])

    def mix(self, x: Value, choice: Choice, *, weighted: bool = True) -> Value:
        return Value(np.sum(x.x * choice.weights[..., None] if weighted else x.x, axis=1))

    def logits(self, x: Value, w: Matrix, bias: Vector | None = None, cap: float = 0.0) -> None:
        wanted = Value(x.x[len(x.x) - self._n_logits :])
        self.result = functions.soft_cap(self.linear(wanted, w, bias).x, cap).astype(np.float32)
