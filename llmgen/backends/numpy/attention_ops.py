"""The operations of the vocabulary on keys and values: storing them, choosing among them, attention."""

from __future__ import annotations

import numpy as np

from llmgen.backends.numpy import functions
from llmgen.backends.numpy.functions import Array
from llmgen.backends.numpy.run import Run, Value
from llmgen.backends.numpy.states import ContentsState, KVState, RecurrentState
from llmgen.model.rope import Rope
from llmgen.model.weights import Vector


class AttentionOps(Run):
    """A run's operations on KV states and on what is derived from them."""

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
