"""The vocabulary of the model functions.

An architecture (archs/) is a Python function over a ``Recorder``: it reads like a
forward pass, but a call computes nothing, it records steps.  There are two
recorders, chosen by the role of the tokens:

- ``TokenRecorder``: 1 to 8 generated tokens.  Matrix-vector kernels; small values are
  computed by every thread for itself, which is cheaper than a barrier.
- ``PromptRecorder``: a chunk of a prompt.  Panel kernels; threads share out tiles of
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
    KEY_BLOCK,
    MAX_COLUMNS,
    PANEL_ROWS,
    RECORDS,
    ROW_STATE,
    SCORE_ROWS,
    TILE_BLOCK,
    TILE_TOKENS,
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


def _floats(n: int) -> int:
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
        return Value(n, _floats(n), self.max_tokens, private, partition)

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
        out = Value(w.n_rows, _floats(w.n_rows), self.max_outputs, False, Rows(w.n_rows))
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
        units = _record_units(x.n, kind)
        args = _record_args(x, out, kind, 0, units, 1, self.split, self.run, COUNT_OUTPUTS)
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


def _record_args(
    x: Value, out: Value, kind: str, first: Any, last: Any, gather: int, split: int, run: int, count: int
) -> list[Any]:
    """Arguments of a quantizing step; blocks of 32 values, single values for the float format."""
    real = x.n if kind == "float" else x.n // 32
    return [x, x.stride, out, out.stride, first, last, real, gather, split, run, count]


def _record_units(n: int, kind: str) -> int:
    """Blocks of 32 (for the float format: values) of a record of n values, padding included."""
    record = RECORDS[kind]
    padded = -(-n // record.values) * record.values
    return padded if kind == "float" else padded // 32


class TokenRecorder(Recorder):
    """Generated tokens, 1 to MAX_COLUMNS."""

    max_tokens = MAX_COLUMNS
    max_outputs = MAX_COLUMNS
    split = 0

    def whole_tokens(self, n: int) -> Value:
        return self.value(n, private=True)

    def _head_range(self, n_heads: int) -> tuple[Any, Any]:
        first, last = share(n_heads, 1)
        return Each(first), Each(last)

    def _head_partition(self, n_heads: int) -> Hashable:
        return Heads(n_heads)

    def _in_place(self, kernel: str, x: Value, args: list[Any], partition: Hashable) -> None:
        # a private copy is complete in every thread: each works on its own heads, then all read the shared result
        if x.private:
            shared = self.value(x.n, private=False, partition=partition)
            self._copy_heads(x, shared, partition)
            args = [shared if a is x else a for a in args]
            x.forms["shared"] = shared
            x = shared
        self.emit(kernel, args, [(x, partition, True)])

    def _copy_heads(self, x: Value, out: Value, partition: Hashable) -> None:
        assert isinstance(partition, Heads)
        first, last = share(partition.n, 1)
        width = x.n // partition.n
        here = lambda v: At(v, lambda t, n: 4 * width * first(t, n))  # noqa: E731
        n = Each(lambda t, n: width * (last(t, n) - first(t, n)))
        self.emit(
            "pointwise:copy",
            [here(x), x.stride, 0, 0, here(out), out.stride, n, 0, self.run, 0.0, COUNT_TOKENS],
            [(x, EVERYTHING, False), (out, partition, True)],
        )

    def head_norm(self, x: Value, w: Vector, n_heads: int, kind: str = "rms") -> Value:
        return _latest(super().head_norm(_latest(x), w, n_heads, kind))

    def rope(
        self, x: Value, n_heads: int, table: RopeTable, scale: float = 1.0, token_scale: int = 0
    ) -> Value:
        return _latest(super().rope(_latest(x), n_heads, table, scale, token_scale))

    def quantized(self, x: Value, kind: str) -> tuple[Value, Hashable]:
        """x as a record, and the partition in which it may be read."""
        if kind in x.forms:
            return x.forms[kind], EVERYTHING
        record = RECORDS[kind]
        units = _record_units(x.n, kind)
        own_rows = not x.private and x.partition == Rows(x.n) and x.n % 32 == 0
        out = Value(x.n, record.size(x.n), self.max_tokens, not own_rows, x.partition)
        first: Any = 0
        last: Any = units
        if own_rows:
            start, stop = share(x.n, 32)
            per = 1 if kind == "float" else 32
            # the thread with the last rows also writes the padding
            first = Each(lambda t, n: start(t, n) // per)
            last = Each(lambda t, n: units if stop(t, n) == x.n and start(t, n) < x.n else stop(t, n) // per)
        reads = x.partition if own_rows else EVERYTHING
        args = _record_args(x, out, kind, first, last, 0, 0, self.run, COUNT_TOKENS)
        self.emit(f"activations:{kind}", args, [(x, reads, False), (out, x.partition, True)])
        x.forms[kind] = out
        return out, EVERYTHING

    def linear(self, x: Value, w: Matrix, bias: Vector | None = None) -> Value:
        record, reads = self.quantized(x, w.kernels.record)
        out = self.value(w.n_rows, private=False, partition=Rows(w.n_rows))
        self._matvec(w, record, reads, out, COUNT_TOKENS)
        if bias is not None:
            self._pointwise("add", out, bias, out)
        return out

    def _pointwise(self, kind: str, x: Value, y: Value | Vector, out: Value) -> None:
        """out = kind(x, y) for each thread's own rows, or for all where out is private."""
        own = not out.private
        first, last = share(x.n, rows_unit(x.n))
        shift = (lambda t, n: 4 * first(t, n)) if own else (lambda t, n: 0)
        n = Each(lambda t, n: last(t, n) - first(t, n)) if own else x.n
        partition = out.partition if own else EVERYTHING
        accesses: list[Access] = [(x, partition, False), (out, partition, True)]
        if isinstance(y, Value):
            other: list[Any] = [At(y, shift), y.stride]
            accesses.append((y, partition, False))
        else:
            other = [Each(lambda t, n: y.address + shift(t, n)), 0]
        args = [At(x, shift), x.stride, *other, At(out, shift), out.stride, n, 0, self.run]
        self.emit(f"pointwise:{kind}", args, accesses)

    def _combined(self, kind: str, x: Value, y: Value) -> Value:
        own = not x.private and not y.private and x.partition == y.partition == Rows(x.n)
        out = self.value(x.n, private=not own, partition=Rows(x.n) if own else EVERYTHING)
        self._pointwise(kind, x, y, out)
        return out

    def add(self, x: Value, y: Value) -> Value:
        out = self.value(x.n, private=True)
        self._pointwise("add", x, y, out)
        return out

    def gated(self, gate: Value, up: Value, activation: str) -> Value:
        return self._combined(f"{activation}_mul", gate, up)

    def attend(self, q: Value, layer: int) -> Value:
        cache = self.layout.layers[layer]
        q = _latest(q)
        group = self.config.n_heads // cache.n_kv_heads
        state = ROW_STATE + _floats(cache.head_dim)
        seen = (
            min(-(-cache.window // KEY_BLOCK) + 1, cache.blocks)
            if self.config.is_local(layer)
            else cache.blocks
        )
        partial = Value(0, state * group * seen * cache.n_kv_heads, self.max_tokens, False)
        scratch = self.scratch(SCORE_ROWS * KEY_BLOCK * 4)
        rest = [partial, seen, scratch, self.run]
        blocks = self._attention_args(q, cache, 0, 0) + rest
        accesses: list[Access] = [(q, EVERYTHING, False), (self._cache_written, EVERYTHING, False)]
        units = ("units", layer)
        accesses += [(partial, units, True), (scratch, EVERYTHING, True)]
        self.emit(f"attention:blocks_{self.layout.kv_type}", blocks, accesses)
        out = self.value(self.config.n_heads * cache.head_dim, private=False, partition=("combined", layer))
        merge = self._attention_args(q, cache, out, out.stride) + rest
        self.emit("attention:combine", merge, [(partial, out.partition, True), (out, out.partition, True)])
        return out


def _latest(x: Value) -> Value:
    """x, or the shared copy that an in-place step made of it."""
    return x.forms.get("shared", x)


class PromptRecorder(Recorder):
    """A chunk of a prompt, up to ``chunk`` tokens of one sequence."""

    split = 1

    def __init__(
        self, config: ModelConfig, layout: CacheLayout, run: int, chunk: int, max_outputs: int
    ) -> None:
        super().__init__(config, layout, run)
        self.max_tokens, self.max_outputs = chunk, max_outputs

    def whole_tokens(self, n: int) -> Value:
        return self.value(n, private=False, partition=TOKENS)

    def _head_range(self, n_heads: int) -> tuple[Any, Any]:
        return 0, n_heads

    def _head_partition(self, n_heads: int) -> Hashable:
        return TOKENS

    def linear(self, x: Value, w: Matrix, bias: Vector | None = None) -> Value:
        out = self.value(w.n_rows, private=False, partition=("panels", w.n_rows))
        self._panel(x, w, out)
        if bias is not None:
            args = [out, out.stride, bias.address, 0, out, out.stride, w.n_rows, 1, self.run]
            self.emit("pointwise:add", args, [(out, TOKENS, True)])
            out.partition = TOKENS
        return out

    def _panel(self, x: Value, w: Matrix, out: Value) -> None:
        kernels = w.kernels
        tiles, blocks = x, w.n_cols
        if kernels.record != "float":
            tiles, blocks = self._tiles(x), w.n_cols // kernels.block
        scratch = self.scratch(-(-w.n_cols // 32) * kernels.panel_bytes + 64)
        first, last = share(-(-w.n_rows // PANEL_ROWS), 1)
        args = [w.address, w.row_bytes, Each(first), Each(last), w.tail_row, w.tail_address, tiles, blocks]
        args += [out, out.stride, scratch, 0, self.run, w.n_rows, x.stride, kernels.groups]
        accesses: list[Access] = [
            (tiles, EVERYTHING, False),
            (out, out.partition, True),
            (scratch, EVERYTHING, True),
        ]
        self.emit(kernels.panel, args, accesses)

    def _tiles(self, x: Value) -> Value:
        """x as int8 tiles of eight tokens."""
        if "tiles" not in x.forms:
            out = Value(x.n, x.n // 32 * TILE_BLOCK, -(-self.max_tokens // TILE_TOKENS), False, TOKENS)
            args = _record_args(x, out, "tiles", 0, 0, 0, 1, self.run, COUNT_TOKENS)
            self.emit("activations:tiles", args, [(x, TOKENS, False), (out, TOKENS, True)])
            x.forms["tiles"] = out
        return x.forms["tiles"]

    def add(self, x: Value, y: Value) -> Value:
        return self._by_token("add", x, y)

    def gated(self, gate: Value, up: Value, activation: str) -> Value:
        return self._by_token(f"{activation}_mul", gate, up)

    def _by_token(self, kind: str, x: Value, y: Value) -> Value:
        out = self.whole_tokens(x.n)
        args = [x, x.stride, y, y.stride, out, out.stride, x.n, 1, self.run]
        accesses: list[Access] = [(x, TOKENS, False), (y, TOKENS, False), (out, TOKENS, True)]
        self.emit(f"pointwise:{kind}", args, accesses)
        return out

    def attend(self, q: Value, layer: int) -> Value:
        cache = self.layout.layers[layer]
        out = self.value(q.n, private=False, partition=("attended", layer))
        rows = TILE_TOKENS * (self.config.n_heads // cache.n_kv_heads)
        state = ROW_STATE + _floats(cache.head_dim)
        nbytes = SCORE_ROWS * KEY_BLOCK * 4 + rows * (cache.head_dim * 4 + state) + 64
        scratch = self.scratch(nbytes)
        args = [*self._attention_args(q, cache, out, out.stride), 0, 0, scratch, self.run]
        accesses: list[Access] = [(q, EVERYTHING, False), (self._cache_written, EVERYTHING, False)]
        accesses += [(out, out.partition, True), (scratch, EVERYTHING, True)]
        self.emit(f"attention:tiles_{self.layout.kv_type}", args, accesses)
        return out

    def fuse_residuals(self) -> None:
        """x + linear(...): let the panel kernel add into x where x is not needed any more."""
        last_use = {v: i for i, step in enumerate(self.steps) for v, _, _ in step.accesses}
        names: dict[Value, Value] = {}  # sums that live on in the buffer of their first term
        kept: list[Step] = []
        for i, step in enumerate(self.steps):
            step.rename(names)
            if kept and _is_residual(kept[-1], step):
                x, y, out = step.args[0], step.args[2], step.args[4]
                assert isinstance(x, Value) and isinstance(y, Value) and isinstance(out, Value)  # noqa: PT018
                if last_use[x] <= i and last_use[y] <= i:
                    _add_into(kept[-1], y, x)
                    names[out] = x
                    last_use[x] = last_use[out]
                    continue
            kept.append(step)
        self.steps = kept


def _is_residual(panel: Step, add: Step) -> bool:
    """Whether ``add`` adds the product that ``panel`` has just made to something that panel does not touch."""
    if not panel.kernel.startswith("quants.panel:") or add.kernel != "pointwise:add":
        return False
    x, y, out = add.args[0], add.args[2], add.args[4]
    return (
        y is panel.args[8]
        and out is not x
        and isinstance(x, Value)
        and all(v is not x for v, _, _ in panel.accesses)
    )


def _add_into(panel: Step, y: Value, x: Value) -> None:
    """Let ``panel`` add to x instead of writing y."""
    panel.args[11] = 1
    panel.rename({y: x})
    panel.accesses = [(v, y.partition if w and v is x else p, w) for v, p, w in panel.accesses]
