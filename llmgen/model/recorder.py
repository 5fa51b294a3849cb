"""The vocabulary of the model functions.

An architecture (archs/) is a Python function over a ``Recorder``: it reads like a
forward pass, but a call computes nothing, it records steps.  There are two
recorders, chosen by the role of the tokens:

- ``TokenRecorder`` (token_recorder.py): 1 to 8 generated tokens.  Matrix-vector kernels; small values are
  computed by every thread for itself, which is cheaper than a barrier.
- ``PromptRecorder`` (prompt_recorder.py): a chunk of a prompt.  Panel kernels; threads share out tiles of
  eight tokens.

Shapes: a Value of n stands for float32 [tokens, n].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from llmgen.kernels.layout import (
    COLUMN_SUMS,
    FIELDS,
    MAX_COLUMNS,
    RECORDS,
)
from llmgen.model.cache import CacheLayout, LayerCache
from llmgen.model.config import ModelConfig
from llmgen.model.program import EVERYTHING, Access, At, Each, Step, Value
from llmgen.model.rope import RopeTable
from llmgen.model.weights import Matrix, Vector

COUNT_TOKENS = 8 * FIELDS["n_tokens"]
COUNT_OUTPUTS = 8 * FIELDS["n_outputs"]

TOKENS = "tokens"
"""Partition of prompt values: each thread its own tiles of tokens."""


def share(n: int, unit: int) -> tuple[Callable[[int, int], int], Callable[[int, int], int]]:
    """first(thread, n_threads) and last(...) of a thread's share of n, in whole units."""
    units = -(-n // unit)

    def first(thread: int, n_threads: int) -> int:
        return min(units * thread // n_threads * unit, n)

    def last(thread: int, n_threads: int) -> int:
        return min(units * (thread + 1) // n_threads * unit, n)

    return first, last


def rows_unit(n: int) -> int:
    """Rows are shared out in units that keep quantized blocks and cache lines whole."""
    return 32 if n % 32 == 0 else 16


@dataclass(frozen=True)
class Rows:
    """Partition: each thread its own range of a token's n values."""

    n: int


@dataclass(frozen=True)
class Heads:
    """Partition: each thread its own heads of n, all tokens."""

    n: int


def floats_bytes(n: int) -> int:
    """Bytes of n floats, padded to whole vectors."""
    return -(-n // 16) * 64


class Recorder(ABC):
    """Records steps.  Subclasses say how tokens and rows are shared out."""

    max_tokens: int
    max_outputs: int

    def __init__(self, config: ModelConfig, layout: CacheLayout, run: int) -> None:
        self.config, self.layout, self.run = config, layout, run
        self.steps: list[Step] = []
        self.logits_value: Value | None = None
        self.tables: list[RopeTable] = []

    # ---- building blocks ---------------------------------------------------------

    def value(self, n: int, private: bool, partition: Hashable = EVERYTHING) -> Value:
        return Value(n, floats_bytes(n), self.max_tokens, private, partition)

    def scratch(self, nbytes: int) -> Value:
        return Value(0, nbytes, 1, True)

    def emit(self, kernel: str, args: list[Any], accesses: list[Access], weights: Any = None) -> None:
        self.steps.append(Step(kernel, args, accesses, weights))

    @abstractmethod
    def whole_tokens(self, n: int) -> Value:
        """A value of which each thread computes whole tokens: all, or its own tiles."""

    @property
    @abstractmethod
    def split(self) -> int:
        """1 where threads share out tokens, 0 where each takes all."""

    def token_reads(self, *values: Value) -> list[Access]:
        """Reads of whole tokens."""
        return [(v, TOKENS if self.split else EVERYTHING, False) for v in values]

    # ---- the vocabulary ------------------------------------------------------------

    def embed(self, w: Matrix, scale: float = 1.0) -> Value:
        """x[t] = scale * w[id of t]."""
        out = self.whole_tokens(w.n_cols)
        kernels = w.kernels
        self.emit(
            kernels.embed,
            [
                w.address,
                w.row_bytes,
                w.n_cols // kernels.block,
                kernels.block,
                out,
                out.stride,
                w.n_cols,
                scale,
            ]
            + [self.split, self.run],
            [(out, out.partition, True)],
        )
        return out

    def rms_norm(self, x: Value, w: Vector, eps: float | None = None) -> Value:
        """x / rms(x) * w over the whole width."""
        return self._norm("norms:rms_norm", x, w, None, eps)

    def layer_norm(self, x: Value, w: Vector, bias: Vector | None, eps: float | None = None) -> Value:
        """(x - mean) / sqrt(var + eps) * w + bias over the whole width."""
        return self._norm("norms:layer_norm", x, w, bias, eps)

    def _norm(self, kernel: str, x: Value, w: Vector, bias: Vector | None, eps: float | None) -> Value:
        out = self.whole_tokens(x.n)
        args = [x, x.stride, out, out.stride, w.address, 0, bias.address if bias else 0, x.n, 0, 1]
        args += [self.split, self.run, self.config.norm_eps if eps is None else eps]
        self.emit(kernel, args, [*self.token_reads(x), (out, out.partition, True)])
        return out

    def head_norm(self, x: Value, w: Vector, n_heads: int, kind: str = "rms") -> Value:
        """Norm of each head by itself, in place; w: one row for all heads, or a row per head."""
        head_dim = self.config.head_dim
        first, last = self._head_range(n_heads)
        stride = 4 * w.n if w.rows > 1 else 0
        args = [x, x.stride, x, x.stride, w.address, stride, 0, head_dim, first, last, self.split, self.run]
        self._in_place(f"norms:{kind}_norm", x, [*args, self.config.norm_eps], self._head_partition(n_heads))
        return x

    def rope(
        self, x: Value, n_heads: int, table: RopeTable, scale: float = 1.0, token_scale: int = 0
    ) -> Value:
        """Rotate each head by its token's position, and multiply by ``scale``; in place."""
        if table not in self.tables:
            self.tables.append(table)
        first, last = self._head_range(n_heads)
        args = [
            x,
            x.stride,
            first,
            last,
            self.config.head_dim,
            table.n_rot,
            int(table.neox),
            table.address,
            scale,
        ]
        self._in_place(
            "rope:rope", x, [*args, token_scale, self.split, self.run], self._head_partition(n_heads)
        )
        return x

    def _in_place(self, kernel: str, x: Value, args: list[Any], partition: Hashable) -> None:
        self.emit(kernel, args, [(x, partition, True)])

    @abstractmethod
    def _head_range(self, n_heads: int) -> tuple[Any, Any]:
        """First and last head of a thread."""

    @abstractmethod
    def _head_partition(self, n_heads: int) -> Hashable: ...

    def store(self, k: Value, v: Value, layer: int) -> None:
        """Concatenate keys and values to the layer's cache."""
        cache = self.layout.layers[layer]
        first, last = self._head_range(cache.n_kv_heads)
        partition = self._head_partition(cache.n_kv_heads)
        args = [k, k.stride, v, v.stride, first, last, cache.head_dim, cache.key_offset, cache.value_offset]
        args += [cache.blocks, self.split, self.run]
        self._cache_written = Value(0, 0, 0, False)  # stands for the cache's memory between store and attend
        accesses: list[Access] = [
            (k, partition, False),
            (v, partition, False),
            (self._cache_written, partition, True),
        ]
        self.emit(f"rope:store_{self.layout.kv_type}_cache", args, accesses)

    def _attention_args(self, q: Value, cache: LayerCache, out: Value | int, out_stride: int) -> list[Any]:
        c = self.config
        return [
            q, q.stride, cache.n_kv_heads, c.n_heads // cache.n_kv_heads, cache.head_dim, cache.key_offset,
            cache.value_offset, cache.blocks, cache.window, float(c.attention_cap), out, out_stride,
        ]  # fmt: skip

    @abstractmethod
    def attend(self, q: Value, layer: int) -> Value:
        """softmax(q k^T) v over the layer's cache, within its window; q is already scaled."""

    @abstractmethod
    def linear(self, x: Value, w: Matrix, bias: Vector | None = None) -> Value:
        """x @ w.T + bias."""

    @abstractmethod
    def add(self, x: Value, y: Value) -> Value:
        """x + y."""

    @abstractmethod
    def gated(self, gate: Value, up: Value, activation: str) -> Value:
        """activation(gate) * up; activation: 'silu' or 'gelu'."""

    def logits(self, x: Value, w: Matrix, bias: Vector | None = None, cap: float = 0.0) -> None:
        """x @ w.T + bias for the tokens that want logits, soft-capped; ends the program."""
        out = Value(w.n_rows, floats_bytes(w.n_rows), self.max_outputs, False, Rows(w.n_rows))
        self._matvec(w, self._output_record(x, w), EVERYTHING, out, COUNT_OUTPUTS)
        first, last = share(w.n_rows, rows_unit(w.n_rows))
        here = At(out, lambda t, n: 4 * first(t, n))
        count = Each(lambda t, n: last(t, n) - first(t, n))
        if bias is not None:
            there = Each(lambda t, n: bias.address + 4 * first(t, n))
            args = [here, out.stride, there, 0, 0, 0, count, 0, self.run, 0.0, COUNT_OUTPUTS]
            self.emit("pointwise:add_row", args, [(out, out.partition, True)])
        if cap:
            args = [here, out.stride, 0, 0, 0, 0, count, 0, self.run, cap, COUNT_OUTPUTS]
            self.emit("pointwise:softcap", args, [(out, out.partition, True)])
        self.logits_value = out

    def _output_record(self, x: Value, w: Matrix) -> Value:
        """The activations of the tokens that want logits, for w's matrix-vector kernel."""
        kind = w.kernels.record
        out = Value(x.n, RECORDS[kind].size(x.n), self.max_outputs, not self.split, "outputs")
        units = record_units(x.n, kind)
        args = record_args(x, out, kind, 0, units, 1, self.split, self.run, COUNT_OUTPUTS)
        self.emit(f"activations:{kind}", args, [(x, EVERYTHING, False), (out, "outputs", True)])
        return out

    def _matvec(self, w: Matrix, record: Value, reads: Hashable, out: Value, count: int) -> None:
        """Emit the matrix-vector kernel of w."""
        first, last = share(w.n_rows, rows_unit(w.n_rows))
        kernels = w.kernels
        steps, tail = divmod(w.n_cols, kernels.step)
        scratch = self.scratch(MAX_COLUMNS * COLUMN_SUMS)
        args = [
            w.address,
            w.row_bytes,
            Each(first),
            Each(last),
            w.tail_row,
            w.tail_address,
            record,
            record.stride,
        ]
        args += [
            steps,
            tail // kernels.block,
            out,
            out.stride,
            self.run,
            count,
            scratch,
        ]
        accesses: list[Access] = [
            (record, reads, False),
            (out, out.partition, True),
            (scratch, EVERYTHING, True),
        ]
        self.emit(kernels.matvec, args, accesses, (w.address, lambda t, n: first(t, n) * w.row_bytes))


def record_args(
    x: Value, out: Value, kind: str, first: Any, last: Any, gather: int, split: int, run: int, count: int
) -> list[Any]:
    """Arguments of a quantizing step; blocks of 32 values, single values for the float format."""
    real = x.n if kind == "float" else x.n // 32
    return [x, x.stride, out, out.stride, first, last, real, gather, split, run, count]


def record_units(n: int, kind: str) -> int:
    """Blocks of 32 (for the float format: values) of a record of n values, padding included."""
    record = RECORDS[kind]
    padded = -(-n // record.values) * record.values
    return padded if kind == "float" else padded // 32
