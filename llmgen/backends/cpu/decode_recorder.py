"""The vocabulary for generated tokens: matrix-vector kernels, small values computed by every thread."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from llmgen.backends.cpu.kernels.layout import KEY_BLOCK, MAX_COLUMNS, RECORDS, ROW_STATE, SCORE_ROWS
from llmgen.backends.cpu.plan import EVERYTHING, Access, At, Each, Value
from llmgen.backends.cpu.recorder import (
    COUNT_TOKENS,
    Heads,
    Recorder,
    Rows,
    floats_bytes,
    real_units,
    record_units,
    rows_unit,
    share,
)
from llmgen.model.rope import RopeTable
from llmgen.model.weights import Matrix, Vector


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

    def _in_place(self, kernel: str, x: Value, partition: Hashable, /, **arguments: Any) -> None:
        # a private copy is complete in every thread: each works on its own heads, then all read the shared result
        if x.private:
            shared = self.value(x.n, private=False, partition=partition)
            self._copy_heads(x, shared, partition)
            arguments = {name: shared if a is x else a for name, a in arguments.items()}
            x.forms["shared"] = shared
            x = shared
        super()._in_place(kernel, x, partition, **arguments)

    def _copy_heads(self, x: Value, out: Value, partition: Hashable) -> None:
        assert isinstance(partition, Heads)
        first, last = share(partition.n, 1)
        width = x.n // partition.n
        here = lambda v: At(v, lambda t, n: 4 * width * first(t, n))  # noqa: E731
        n = Each(lambda t, n: width * (last(t, n) - first(t, n)))
        self.emit(
            "pointwise:copy", [(x, EVERYTHING, False), (out, partition, True)], x=here(x), out=here(out), n=n
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
        units = record_units(x.n, kind)
        own_rows = not x.private and x.partition == Rows(x.n) and x.n % 32 == 0
        out = Value(x.n, record.size(x.n), self.max_tokens, not own_rows, x.partition)
        first: Any = 0
        last: Any = units
        if own_rows:
            start, stop = share(x.n, 32)
            per = 1 if kind == "float32" else 32
            # the thread with the last rows also writes the padding
            first = Each(lambda t, n: start(t, n) // per)
            last = Each(lambda t, n: units if stop(t, n) == x.n and start(t, n) < x.n else stop(t, n) // per)
        reads = x.partition if own_rows else EVERYTHING
        self.emit(
            f"activations:{kind}",
            [(x, reads, False), (out, x.partition, True)],
            x=x,
            out=out,
            first=first,
            last=last,
            real=real_units(x.n, kind),
            gather=0,
            count=COUNT_TOKENS,
        )
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
            accesses.append((y, partition, False))
        self.emit(
            f"pointwise:{kind}",
            accesses,
            x=At(x, shift),
            y=At(y, shift) if isinstance(y, Value) else Each(lambda t, n: y.address + shift(t, n)),
            y_stride=y.stride if isinstance(y, Value) else 0,
            out=At(out, shift),
            n=n,
        )

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
        state = ROW_STATE + floats_bytes(cache.head_dim)
        local = self.config.is_local(layer)
        seen = min(-(-cache.window // KEY_BLOCK) + 1, cache.blocks) if local else cache.blocks
        states = Value(0, state * group * seen * cache.n_kv_heads, self.max_tokens, False, ("units", layer))
        self._attend("blocks", q, cache, states, self.scratch(SCORE_ROWS * KEY_BLOCK * 4))
        out = self.value(self.config.n_heads * cache.head_dim, private=False, partition=("combined", layer))
        self.emit(
            "attention:combine",
            [(states, out.partition, True), (out, out.partition, True)],
            n_kv=cache.n_kv_heads,
            group=group,
            head_dim=cache.head_dim,
            window=cache.window,
            states=states,
            out=out,
        )
        return out


def _latest(x: Value) -> Value:
    """x, or the shared copy that an in-place step made of it."""
    return x.forms.get("shared", x)
