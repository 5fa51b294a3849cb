"""Keys and values as steps of a program: storing them in the cache, and attention over all that a token sees."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from llmgen.backends.cpu.binding import Binding
from llmgen.backends.cpu.kernels import attention_arguments  # noqa: F401 - the tables of the steps
from llmgen.backends.cpu.kernels.kv import attention_kernel, store_kernel
from llmgen.backends.cpu.kernels.layout import FIELDS
from llmgen.backends.cpu.plan import EVERYTHING, Access, At, Value
from llmgen.backends.cpu.recorder import Recorder
from llmgen.backends.cpu.states import PlacedKV
from llmgen.model.weights import Vector


class AttentionRecorder(Recorder):
    """The part of the vocabulary that is about keys and values."""

    def __init__(self, binding: Binding, control: int) -> None:
        super().__init__(binding, control)
        self._cache_written = Value(0, 0, 0, False)
        """Stands for the cache's memory between store and attend."""

    def store(self, k: Value | None, v: Value | None, state: PlacedKV) -> None:
        self._cache_written = Value(0, 0, 0, False)
        self._store(state, k, v)

    def _store(
        self, state: PlacedKV, k: Value | None = None, v: Value | None = None, **arguments: Value | At
    ) -> None:
        """Emit the step that appends keys, values or both; arguments: what is otherwise than usual."""
        kinds = None if k is None else state.keys.key, None if v is None else state.values.key
        rows = {name: x for name, x in (("k", k), ("v", v)) if x is not None}
        nothing = {f"{name}{part}": 0 for name in "kv" if name not in rows for part in ("", "_stride")}
        first, last = self._head_range(state.n_heads)
        partition = self._head_partition(state.n_heads)
        accesses: list[Access] = [(x, partition, False) for x in rows.values()]
        accesses.append((self._cache_written, partition, True))
        self.emit(
            store_kernel(*kinds),
            accesses,
            **rows,
            **nothing,
            first=first,
            last=last,
            **self._places(state),
            **arguments,
        )

    def attend(
        self,
        q: Value,
        state: PlacedKV,
        n_heads: int,
        cap: float = 0.0,
        slopes: np.ndarray | None = None,
        sinks: Vector | None = None,
    ) -> Value:
        scores = {
            "cap": float(cap),
            "slopes": 0 if slopes is None else self.binding.keep(slopes.astype(np.float32)),
            "sinks": 0 if sinks is None else self.binding.vector(sinks),
        }
        return self._attended(q, state, n_heads, scores)

    @staticmethod
    def _seen(state: PlacedKV) -> dict[str, int]:
        """What a token sees, as arguments of attention."""
        last = FIELDS["positions" if state.causal else "run_ends"]
        return {"window": -state.window if state.chunked else state.window, "last": 8 * last}

    def _cached(self, state: PlacedKV) -> dict[str, int]:
        """Where a state's keys and values lie, and what a token sees of them, as arguments of attention."""
        return {**self._places(state), **self._seen(state)}

    @staticmethod
    def _places(state: PlacedKV) -> dict[str, int]:
        """Where a state's keys and values lie, as arguments of the kernels that write or read them."""
        return {
            "key_dim": state.key_dim,
            "value_dim": state.value_dim,
            "k_at": state.key_offset,
            "v_at": state.value_offset,
            "blocks": state.blocks,
        }

    @abstractmethod
    def _attended(self, q: Value, state: PlacedKV, n_heads: int, scores: dict[str, Any]) -> Value:
        """``attend``; scores: the kernel's arguments that change the scores."""

    def _attend(
        self,
        role: str,
        q: Value,
        state: PlacedKV,
        group: int,
        scores: dict[str, Any],
        out: Value,
        scratch: Value,
    ) -> None:
        """Emit the attention kernel of a role, in which each thread computes its own part of ``out``."""
        accesses: list[Access] = [
            (q, EVERYTHING, False),
            (self._cache_written, EVERYTHING, False),
            (out, out.partition, True),
            (scratch, EVERYTHING, True),
        ]
        self.emit(
            attention_kernel(role, state.keys.key, state.values.key),
            accesses,
            q=q,
            n_kv=state.n_heads,
            group=group,
            **self._cached(state),
            **scores,
            out=out,
            scratch=scratch,
        )
