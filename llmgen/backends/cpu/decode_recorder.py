"""The vocabulary for generated tokens: matrix-vector kernels, small values computed by every thread."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from llmgen.backends.cpu.binding import BoundMatrix
from llmgen.backends.cpu.expert_recorder import ExpertRecorder, Part, Routing
from llmgen.backends.cpu.kernels.decode_plan import blocks_scratch
from llmgen.backends.cpu.kernels.layout import (
    ACTIVATION_FORMATS,
    KEY_BLOCK,
    MAX_COLUMNS,
    STEP_BYTES,
    row_state_bytes,
)
from llmgen.backends.cpu.ngram_recorder import NGramRecorder
from llmgen.backends.cpu.partitions import Heads, Rows, padded_units, real_units, rows_unit, share
from llmgen.backends.cpu.plan import EVERYTHING, Access, At, Each, KernelAddress, Value
from llmgen.backends.cpu.recorder import COUNT_TOKENS
from llmgen.backends.cpu.sparse_recorder import SparseRecorder
from llmgen.backends.cpu.states import PlacedKV
from llmgen.backends.cpu.stream_recorder import StreamRecorder
from llmgen.backends.cpu.stretch_recorder import StretchRecorder
from llmgen.model.weights import Experts, Matrix, Vector


class DecodeRecorder(ExpertRecorder, StretchRecorder, SparseRecorder, StreamRecorder, NGramRecorder):
    """Generated tokens, 1 to MAX_COLUMNS."""

    max_tokens = MAX_COLUMNS
    max_outputs = MAX_COLUMNS
    split_tokens = 0

    def whole_tokens(self, n: int, like: Value | None = None) -> Value:
        return self.value(n, private=True, like=like)

    def _head_range(self, n_heads: int) -> tuple[Any, Any]:
        first, last = share(n_heads, 1)
        return Each(first), Each(last)

    def _head_partition(self, n_heads: int) -> Hashable:
        return Heads(n_heads)

    def _in_place(
        self, kernel: str, x: Value, partition: Hashable, /, *, from_byte: int = 0, **arguments: Any
    ) -> Value:
        # a private copy is complete in every thread: each works on its own heads, then all read the shared result
        if x.private:
            shared = self.value(x.n, private=False, partition=partition, like=x)
            self._copy_heads(x, shared, partition)
            arguments = {name: shared if a is x else a for name, a in arguments.items()}
            x.copies["shared"] = shared
            x = shared
        return super()._in_place(kernel, x, partition, from_byte=from_byte, **arguments)

    def _copy_heads(self, x: Value, out: Value, partition: Hashable) -> None:
        assert isinstance(partition, Heads)
        first, last = share(partition.n, 1)
        width = x.n // partition.n
        here = lambda v: At(v, lambda t, n: 4 * width * first(t, n))  # noqa: E731
        n = Each(lambda t, n: width * (last(t, n) - first(t, n)))
        self.emit(
            "pointwise:copy", [(x, EVERYTHING, False), (out, partition, True)], x=here(x), out=here(out), n=n
        )

    def quantized(self, x: Value, kind: str) -> tuple[Value, Hashable]:
        """x in one of layout.ACTIVATION_FORMATS, and the partition in which it may be read."""
        if kind in x.copies:
            return x.copies[kind], EVERYTHING
        units = padded_units(x.n, kind)
        own_rows = not x.private and x.partition == Rows(x.n) and x.n % 32 == 0
        nbytes = ACTIVATION_FORMATS[kind].size(x.n)
        out = Value(x.n, nbytes, x.rows, not own_rows, x.partition, counter=x.counter)
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
        x.copies[kind] = out
        return out, EVERYTHING

    def _product(self, x: Value, w: Matrix, bias: Vector | None) -> Value:
        bound = self.binding.matrix(w)
        activations, reads = self.quantized(x, bound.kernels.activations)
        out = self.value(w.n_rows, private=False, partition=Rows(w.n_rows))
        self._matvec(bound, activations, reads, out, COUNT_TOKENS)
        if bias is not None:
            self._pointwise("add", out, bias, out)
        return out

    def _own_rows(self, n: int) -> tuple[Callable[[int, int], int], Any]:
        """The offset of a thread's rows of n in bytes, and their number."""
        first, last = share(n, rows_unit(n))
        count = Each(lambda thread, n_threads: last(thread, n_threads) - first(thread, n_threads))
        return lambda thread, n_threads: 4 * first(thread, n_threads), count

    def _pointwise(self, kind: str, x: Value, y: Value | Vector, out: Value) -> None:
        """out = kind(x, y) for each thread's own rows, or for all rows if out is private."""
        own = not out.private
        shift, n = self._own_rows(x.n) if own else (lambda t, n: 0, x.n)
        partition = out.partition if own else EVERYTHING
        accesses: list[Access] = [(x, partition, False), (out, partition, True)]
        if isinstance(y, Value):
            accesses.append((y, partition, False))
            there: Any = At(y, shift)
        else:
            row = self.binding.vector(y)
            there = Each(lambda t, n: row + shift(t, n))
        self.emit(
            f"pointwise:{kind}",
            accesses,
            x=At(x, shift),
            y=there,
            y_stride=y.stride if isinstance(y, Value) else 0,
            out=At(out, shift),
            n=n,
        )

    def _combined(self, kind: str, x: Value, y: Value | Vector) -> Value:
        own = all(self._own(v) for v in (x, y) if isinstance(v, Value))
        out = self.value(x.n, private=not own, partition=Rows(x.n) if own else EVERYTHING, like=x)
        self._pointwise(kind, x, y, out)
        return out

    @staticmethod
    def _own(x: Value) -> bool:
        """Whether each thread has its own rows of x."""
        return not x.private and x.partition == Rows(x.n)

    def add(self, x: Value, y: Value | Vector) -> Value:
        if x.counter:  # rows of experts: many, of which a thread needs its own part only
            return self._combined("add", x, y)
        out = self.value(x.n, private=True)
        self._pointwise("add", x, y, out)
        return out

    def multiply(self, x: Value, y: Value | Vector) -> Value:
        return self._combined("mul", x, y)

    def _unary(self, kind: str, x: Value, **parameter: float) -> Value:
        own = self._own(x)
        out = self.value(x.n, private=not own, partition=Rows(x.n) if own else EVERYTHING, like=x)
        shift, n = self._own_rows(x.n) if own else (lambda t, n: 0, x.n)
        partition = out.partition if own else EVERYTHING
        self.emit(
            f"pointwise:{kind}",
            [(x, partition, False), (out, partition, True)],
            x=At(x, shift),
            out=At(out, shift),
            n=n,
            **parameter,
        )
        return out

    def gated(self, gate: Value, up: Value, activation: str) -> Value:
        return self._combined(f"{activation}_mul", gate, up)

    def _part(self, x: Value) -> Part:
        if self._own(x):
            return x.partition, *self._own_rows(x.n)
        return EVERYTHING, lambda t, n: 0, x.n

    def _expert_product(self, x: Value, w: Experts, routing: Routing) -> Value:
        bound = self.binding.matrix(w.all_rows)
        activations, reads = self.quantized(x, bound.kernels.activations)
        out = self.value(w.n_rows, private=False, partition=Rows(w.n_rows), like=routing.rows)
        accesses, arguments = self._matvec_arguments(bound, w.n_rows, activations, reads, out, COUNT_TOKENS)
        own = self.scratch(STEP_BYTES + MAX_COLUMNS * routing.most * activations.stride)
        self.emit(
            "experts:matvec",
            [*accesses, (own, EVERYTHING, True)],
            **arguments,
            kernel=KernelAddress(bound.kernels.matvec),
            expert_rows=w.whole_rows,
            by_token=int(x.counter is None),
            own=own,
            routing=routing.block,
        )
        return out

    def _head_activations(self, x: Value, w: BoundMatrix, head: int) -> Value:
        kind = w.kernels.activations
        out = Value(w.n_cols, ACTIVATION_FORMATS[kind].size(w.n_cols), self.max_tokens, True)
        self.emit(
            f"activations:{kind}",
            [(x, EVERYTHING, False), (out, EVERYTHING, True)],
            x=At(x, lambda thread, n_threads: 4 * w.n_cols * head),
            out=out,
            first=0,
            last=padded_units(w.n_cols, kind),
            real=real_units(w.n_cols, kind),
            gather=0,
            count=COUNT_TOKENS,
        )
        return out

    def _head_product(self, x: Value, w: BoundMatrix, out: Value, at: int) -> None:
        accesses, arguments = self._matvec_arguments(w, w.n_rows, x, EVERYTHING, out, COUNT_TOKENS)
        there = At(out, lambda thread, n_threads: at)
        self.emit(w.kernels.matvec, accesses, **{**arguments, "out": there})

    def _attended_latent(
        self, q: tuple[Value, Value | None], state: PlacedKV, n_heads: int, scores: dict[str, Any]
    ) -> Value:
        states = self._row_states(state, n_heads)
        self._attend_latent("blocks", q, state, n_heads, scores, states)
        return self._merged(states, state, n_heads, n_heads)

    def _attended(self, q: Value, state: PlacedKV, n_heads: int, scores: dict[str, Any]) -> Value:
        group = n_heads // state.n_heads
        states = self._row_states(state, group)
        scratch = self.scratch(blocks_scratch(group, state.key_dim, state.value_dim))
        self._attend("blocks", q, state, group, scores, states, scratch)
        return self._merged(states, state, n_heads, group)

    def _row_states(self, state: PlacedKV, group: int) -> Value:
        """The row states of all blocks that a token sees; ``group`` query heads for each kv head."""
        seen = min(-(-state.window // KEY_BLOCK) + 1, state.blocks)
        row_states = row_state_bytes(state.value_dim) * group * seen * state.n_heads
        return Value(0, row_states, self.max_tokens, False, ("units", state.key_offset))

    def _merged(self, states: Value, state: PlacedKV, n_heads: int, group: int) -> Value:
        """The results of n_heads heads out of the row states of all blocks."""
        out = self.value(n_heads * state.value_dim, private=False, partition=("combined", state.key_offset))
        self.emit(
            "attention:combine",
            [(states, out.partition, True), (out, out.partition, True)],
            n_kv=state.n_heads,
            group=group,
            value_dim=state.value_dim,
            **self._seen(state),
            states=states,
            out=out,
        )
        return out
