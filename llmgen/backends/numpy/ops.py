"""The vocabulary of ``model.ops``, computed at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from llmgen.backends.numpy import functions
from llmgen.backends.numpy.functions import Array
from llmgen.backends.numpy.states import ContentsState, KVState, RecurrentState
from llmgen.gguf import GGMLType
from llmgen.gguf.dequantize import dequantize
from llmgen.model.ngrams import NGrams
from llmgen.model.ops import Scores
from llmgen.model.rope import Rope
from llmgen.model.weights import Experts, Matrix, Vector

FLOAT_TYPES = (GGMLType.F64, GGMLType.F32, GGMLType.F16, GGMLType.BF16)


@dataclass(frozen=True)
class Precision:
    """What is rounded on the way.

    dtype: float64 for the truth, float32 for large models.  int8_activations: round what
    enters a quantized matrix to int8 per 32, as the CPU's kernels do.  f16_cache: keys and
    values pass through float16.
    """

    dtype: Any = np.float64
    int8_activations: bool = False
    f16_cache: bool = False


@dataclass(frozen=True, eq=False)
class Value:
    """float [tokens, n], or [tokens, n_used, n] where there is a row for each chosen expert."""

    x: Array

    @property
    def n(self) -> int:
        return int(self.x.shape[-1])


@dataclass(frozen=True, eq=False)
class Choice:
    """The experts of each token, int [tokens, n_used], and their weights, float [tokens, n_used]."""

    ids: Array
    weights: Array


class Matrices:
    """Weight matrices as float32 [n_rows, n_cols], dequantized when first used."""

    def __init__(self) -> None:
        self._known: dict[str, Array] = {}

    def __getitem__(self, m: Matrix) -> Array:
        if m.name not in self._known:
            rows = m.tensor.data.reshape(-1, m.tensor.row_bytes)
            self._known[m.name] = dequantize(rows, m.tensor.type)
        return self._known[m.name][m.first_row : m.first_row + m.n_rows]


class NumpyOps:
    """One pass over tokens of one sequence, the first of them at ``position``."""

    def __init__(
        self, matrices: Matrices, precision: Precision, n_ctx: int, ids: Array, position: int, n_logits: int
    ) -> None:
        self._matrices, self._precision, self._n_ctx = matrices, precision, n_ctx
        self._ids, self._position, self._n_logits = ids, position, n_logits
        self.result: Array = np.empty((0, 0), np.float32)
        """After ``logits``: float32 [n_logits, n_vocab]."""

    @property
    def n_ctx(self) -> int:
        return self._n_ctx

    @cached_property
    def _positions(self) -> Array:
        return np.arange(self._position, self._position + len(self._ids))

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

    def store(self, k: Value | None, v: Value | None, state: KVState) -> None:
        shape = len(self._ids), state.spec.n_heads
        empty = np.empty((*shape, 0), self._precision.dtype)
        kv = [
            empty if part is None else part.x.reshape(*shape, dim)
            for part, dim in ((k, state.spec.key_dim), (v, state.spec.value_dim))
        ]
        if self._precision.f16_cache:
            kv = [value.astype(np.float16).astype(value.dtype) for value in kv]
        state.k, state.v = np.concatenate([state.k, kv[0]]), np.concatenate([state.v, kv[1]])

    def attend(
        self,
        q: Value,
        state: KVState,
        n_heads: int,
        cap: float = 0.0,
        slopes: np.ndarray | None = None,
        sinks: Vector | None = None,
        chosen: list[list[Array]] | None = None,
    ) -> Value:
        attended = functions.attention(
            self._heads(q, n_heads),
            state.k,
            state.v,
            1.0,
            n_past=self._position,
            window=state.spec.window,
            chunked=state.spec.chunked,
            causal=state.spec.causal,
            cap=cap,
            slopes=slopes,
            sinks=None if sinks is None else sinks.values,
            chosen=None if chosen is None else [own * (state.spec.n_heads // len(own)) for own in chosen],
        )
        return self._flat(attended)

    def attend_latent(
        self,
        content: Value,
        position: Value | None,
        state: KVState,
        n_heads: int,
        cap: float = 0.0,
        sinks: Vector | None = None,
        chosen: list[list[Array]] | None = None,
    ) -> Value:
        parts = [content] if position is None else [content, position]
        attended = functions.attention(
            np.concatenate([self._heads(part, n_heads) for part in parts], axis=2),
            np.concatenate([state.v, state.k], axis=2),
            state.v,
            1.0,
            n_past=self._position,
            window=state.spec.window,
            cap=cap,
            sinks=None if sinks is None else sinks.values,
            chosen=chosen,
        )
        return self._flat(attended)

    def choose_keys(
        self, q: Value, weights: Value | Vector, state: KVState, n_heads: int, k: int
    ) -> list[list[Array]]:
        queries, keys = self._heads(q, n_heads), state.k[:, 0]
        factors = np.ones((len(q.x), 1)) * self._second(weights)
        chosen = []
        for i, position in enumerate(self._positions):
            n_keys = (position + 1) // state.spec.every
            scores = factors[i] @ functions.relu(queries[i] @ keys[:n_keys].T)
            chosen.append([np.sort(np.argsort(-scores, kind="stable")[:k])])
        return chosen

    def choose_blocks(
        self, q: Value, state: KVState, n_heads: int, block: int, k: int, local: int
    ) -> list[list[Array]]:
        queries, keys = self._heads(q, n_heads), state.k[:, 0]
        return [
            [functions.best_blocks(keys[: position + 1] @ query, block, k, local) for query in queries[i]]
            for i, position in enumerate(self._positions)
        ]

    def summarize(
        self,
        x: Value,
        scores: Value | None,
        state: RecurrentState,
        into: KVState,
        *,
        offsets: Vector | None = None,
        norm: Vector | None,
        eps: float,
        rope: Rope,
    ) -> None:
        every = into.every if isinstance(into, ContentsState) else into.spec.every
        weights = np.zeros_like(x.x) if scores is None else scores.x
        if offsets is not None:
            weights = weights + offsets.values.reshape(every, -1)[self._positions % every].astype(x.x.dtype)
        rows, state.values = functions.summaries(x.x, weights, self._positions, every, state.values)
        rows = (rows if norm is None else functions.rms_norm(rows, norm.values, eps))[:, None]
        first = (self._position // every) * every
        angles = rope.rows(first, first + len(rows) * every, x.x.dtype)[::every]
        rows = functions.rotate(rows, angles, rope.neox, rope.first)
        if self._precision.f16_cache:
            rows = rows.astype(np.float16).astype(rows.dtype)
        if isinstance(into, ContentsState):
            into.summaries = np.concatenate([into.summaries, rows[:, 0]])
        else:
            into.k = np.concatenate([into.k, rows])

    def stretch_tokens(self, chosen: list[list[Array]], state: KVState) -> list[list[Array]]:
        every = state.spec.every
        return [
            [
                np.concatenate(
                    [(numbers[:, None] * every + np.arange(every)).reshape(-1)]
                    + [np.arange((position + 1) // every * every, position + 1)]
                )
            ]
            for (numbers,), position in zip(chosen, self._positions, strict=True)
        ]

    def attend_contents(
        self,
        q: Value,
        state: ContentsState,
        n_heads: int,
        sinks: Vector | None = None,
        chosen: list[list[Array]] | None = None,
    ) -> Value:
        queries, rows = self._heads(q, n_heads), []
        for i, position in enumerate(self._positions):
            stretches = np.arange((position + 1) // state.every if state.every else 0)
            recent = state.k[max(0, position + 1 - state.spec.window) : position + 1, 0]
            seen = np.concatenate([recent, state.summaries[stretches if chosen is None else chosen[i][0]]])
            scores = queries[i] @ seen.T
            if sinks is not None:
                scores = np.concatenate([scores, sinks.values.astype(scores.dtype)[:, None]], axis=1)
            rows.append(functions.softmax(scores)[:, : len(seen)] @ seen)
        return self._flat(np.stack(rows))

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

    def _second(self, y: Value | Vector) -> Array:
        return y.x if isinstance(y, Value) else y.values.astype(self._precision.dtype)

    def _heads(self, x: Value, n_heads: int) -> Array:
        """[tokens, n_heads, head_dim]."""
        return x.x.reshape(len(x.x), n_heads, -1)

    def _flat(self, heads: Array) -> Value:
        return Value(heads.reshape(len(heads), -1))
