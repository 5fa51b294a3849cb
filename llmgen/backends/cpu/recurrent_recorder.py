"""The operations of the vocabulary that work on recurrent states; they are the same in both roles.

Threads share out columns or heads and take all tokens in order, since each token needs the
state that the one before has left.
"""

from __future__ import annotations

from typing import Any

from llmgen.backends.cpu.kernels import recurrent_arguments  # noqa: F401 - the tables of the steps
from llmgen.backends.cpu.partitions import Heads, Rows, rows_unit, share
from llmgen.backends.cpu.plan import EVERYTHING, Access, Each, Value
from llmgen.backends.cpu.recorder import Recorder
from llmgen.backends.cpu.states import PlacedRecurrent, row_bytes
from llmgen.model.weights import Vector


class RecurrentRecorder(Recorder):
    """The part of the vocabulary that is about recurrent states."""

    def convolve(self, x: Value, w: Vector, bias: Vector | None, state: PlacedRecurrent) -> Value:
        out = self.value(x.n, private=False, partition=Rows(x.n))
        self.emit(
            "recurrent:convolve",
            [self._column_reads(x), (out, out.partition, True)],
            x=x,
            weight=self.binding.vector(w),
            weight_row=4 * w.n,
            bias=0 if bias is None else self.binding.vector(bias),
            taps=w.rows,
            state_at=state.offset,
            state_row=row_bytes(state.n),
            out=out,
            **self._own_columns(x.n),
        )
        return out

    def selective_scan(
        self, x: Value, step: Value, a: Vector, b: Value, c: Value, skip: Vector, state: PlacedRecurrent
    ) -> Value:
        out = self.value(x.n, private=False, partition=Rows(x.n))
        accesses = [
            self._column_reads(x),
            self._column_reads(step),
            (b, EVERYTHING, False),
            (c, EVERYTHING, False),
        ]
        self.emit(
            "recurrent:selective_scan",
            [*accesses, (out, out.partition, True)],
            x=x,
            step=step,
            a=self.binding.vector(a),
            a_row=4 * a.n,
            b=b,
            c=c,
            skip=self.binding.vector(skip),
            size=state.rows,
            state_at=state.offset,
            state_row=row_bytes(state.n),
            out=out,
            **self._own_columns(x.n),
        )
        return out

    def linear_attend(
        self,
        q: Value,
        k: Value,
        v: Value,
        decay: Value | Vector,
        state: PlacedRecurrent,
        n_heads: int,
        *,
        write: Value | None = None,
        skip: Vector | None = None,
        delta: bool = False,
        tiled: bool = False,
    ) -> Value:
        key_dim, partition = state.rows // n_heads, Heads(n_heads)
        out, scratch = self.value(v.n, private=False, partition=partition), self.scratch(64)
        reads = [value for value in (q, k, v, decay, write) if isinstance(value, Value)]
        accesses: list[Access] = [(value, EVERYTHING, False) for value in reads]
        n_keys, n_decays = q.n // key_dim, decay.n if isinstance(decay, Value) else decay.values.size
        first, last = share(n_heads, 1)
        self.emit(
            "recurrent:delta_rule" if delta else "recurrent:linear_attend",
            [*accesses, (out, partition, True), (scratch, EVERYTHING, True)],
            q=q,
            k=k,
            v=v,
            **self._decay(decay),
            decay_width=n_decays // n_heads,
            decay_step=4 if n_decays > n_heads else 0,
            write=0 if write is None else write,
            write_stride=0 if write is None else write.stride,
            skip=0 if skip is None else self.binding.vector(skip),
            key_dim=key_dim,
            value_dim=state.n,
            n_keys=n_keys,
            group=n_heads // n_keys,
            tiled=int(tiled),
            state_at=state.offset,
            out=out,
            scratch=scratch,
            first=Each(first),
            last=Each(last),
        )
        return out

    def _decay(self, decay: Value | Vector) -> dict[str, Any]:
        if isinstance(decay, Value):
            return {"decay": decay}
        return {"decay": self.binding.vector(decay), "decay_stride": 0}

    @staticmethod
    def _column_reads(x: Value) -> Access:
        """A step that needs the columns of x that are its own."""
        return x, Rows(x.n) if x.partition == Rows(x.n) else EVERYTHING, False

    @staticmethod
    def _own_columns(n: int) -> dict[str, Each]:
        """A thread's columns of n."""
        first, last = share(n, rows_unit(n))
        return {"first": Each(first), "last": Each(last)}
