"""What a sequence remembers, as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmgen.backends.numpy.functions import Array
from llmgen.errors import ContextFullError
from llmgen.model.states import KV, Contents, Recurrent


class KVState:
    """The keys and values of one layer and sequence: float [positions, n_heads, head_dim]."""

    def __init__(self, spec: KV, dtype: Any) -> None:
        self.spec = spec
        self.k: Array = np.empty((0, spec.n_heads, spec.key_dim), dtype)
        self.v: Array = np.empty((0, spec.n_heads, spec.value_dim), dtype)

    def cut(self, n: int) -> None:
        """Forget what lies behind the first n positions."""
        self.k, self.v = self.k[: n // self.spec.every], self.v[: n // self.spec.every]


class ContentsState(KVState):
    """Contents of tokens as keys, float [positions, 1, dim], and of stretches, float [stretches, dim]."""

    def __init__(self, spec: Contents, dtype: Any) -> None:
        super().__init__(KV(1, spec.dim, 0, spec.window), dtype)
        self.every = spec.every
        self.summaries: Array = np.empty((0, spec.dim), dtype)

    def cut(self, n: int) -> None:
        super().cut(n)
        self.summaries = self.summaries[: n // self.every if self.every else 0]


class RecurrentState:
    """The state of one layer and sequence that every token replaces: float [rows, n]."""

    def __init__(self, spec: Recurrent, dtype: Any) -> None:
        self.values: Array = np.zeros((spec.rows, spec.n), dtype)

    def cut(self, n: int) -> None:
        """Forget everything; there is no way back to another length."""
        if n:
            raise ContextFullError(f"a recurrent state cannot be cut back to {n} tokens; start from 0")
        self.values = np.zeros_like(self.values)
