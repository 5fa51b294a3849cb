"""What the numpy backend computes with, and one run over tokens: the base of its vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from llmgen.backends.numpy.functions import Array
from llmgen.gguf.dequantize import dequantize
from llmgen.model.weights import Matrix, Vector


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


class Run:
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

    def _second(self, y: Value | Vector) -> Array:
        return y.x if isinstance(y, Value) else y.values.astype(self._precision.dtype)

    def _heads(self, x: Value, n_heads: int) -> Array:
        """[tokens, n_heads, head_dim]."""
        return x.x.reshape(len(x.x), n_heads, -1)

    def _flat(self, heads: Array) -> Value:
        return Value(heads.reshape(len(heads), -1))
