"""Recording a forward pass: the vocabulary of ``model.ops`` as steps of a program.

A call computes nothing.  It appends one or more steps and returns a ``Value``, a buffer
that does not exist yet.  There are two recorders, chosen by the role of the tokens:

- ``DecodeRecorder`` (decode_recorder.py): 1 to 8 generated tokens.  Matrix-vector kernels;
  every thread computes small values for itself, which is cheaper than a barrier.
- ``PrefillRecorder`` (prefill_recorder.py): a chunk of a prompt.  Panel kernels; threads
  share out tiles of eight tokens.

Once there is a copy of a value (quantized or shared), the value must not change any more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Any

import numpy as np

from llmgen.backends.cpu.binding import Binding, BoundMatrix
from llmgen.backends.cpu.kernels.arguments import table_of
from llmgen.backends.cpu.kernels.layout import ACTIVATION_FORMATS, COLUMN_SUMS, FIELDS, MAX_COLUMNS
from llmgen.backends.cpu.partitions import (
    TOKENS,
    Rows,
    floats_bytes,
    padded_units,
    real_units,
    rows_unit,
    share,
)
from llmgen.backends.cpu.plan import EVERYTHING, Access, At, Each, Step, Stream, Value
from llmgen.model.rope import NOPE, Rope
from llmgen.model.weights import Matrix, Vector

COUNT_TOKENS = 8 * FIELDS["n_tokens"]
COUNT_OUTPUTS = 8 * FIELDS["n_outputs"]


class Recorder(ABC):
    """Records steps.  Subclasses say how tokens and rows are shared out."""

    max_tokens: int
    max_outputs: int
    most_logits: int | None = None
    """The number of tokens of the vocabulary, from the first on, that get logits; by default all."""

    def __init__(self, binding: Binding, control: int) -> None:
        """binding: of the model's weights; control: address of the control block."""
        self.binding, self.control = binding, control
        self.steps: list[Step] = []
        self.logits_value: Value | None = None

    @property
    def n_ctx(self) -> int:
        return self.binding.n_ctx

    # ---- building blocks ---------------------------------------------------------

    def value(
        self, n: int, private: bool, partition: Hashable = EVERYTHING, like: Value | None = None
    ) -> Value:
        """A value of n; like: a value with the same rows, by default one row for each token."""
        rows, counter = (like.rows, like.counter) if like else (self.max_tokens, None)
        return Value(n, floats_bytes(n), rows, private, partition, counter=counter)

    def scratch(self, nbytes: int) -> Value:
        return Value(0, nbytes, 1, True)

    def emit(
        self, kernel: str, accesses: list[Access], stream: Stream | None = None, /, **arguments: Any
    ) -> None:
        """Append a step.

        arguments: those of the kernel's table (kernels/arguments.py).  ``control``, ``split_tokens``
        and the strides of values can be left out.  Raises TypeError if one is
        missing or unknown.
        """
        assert not any(writes and v.copies for v, _, writes in accesses), f"{kernel} changes a copied value"
        table = table_of(kernel)
        counter = next((v.counter for v, _, _ in accesses if v.counter), None)
        if counter is not None:  # its rows take the place of the run's tokens
            accesses = [*accesses, (counter, EVERYTHING, False)]
            if "control" in table._fields:
                arguments.setdefault("control", counter)
        for name in table._fields:
            if name not in arguments:
                if name in ("control", "split_tokens"):
                    arguments[name] = getattr(self, name)
                elif isinstance(value := arguments.get(name.removesuffix("_stride")), (Value, At)):
                    arguments[name] = value.stride
        self.steps.append(Step(kernel, table(**arguments), accesses, stream))

    @abstractmethod
    def whole_tokens(self, n: int, like: Value | None = None) -> Value:
        """A value of which each thread computes whole tokens: all, or its own tiles; like: as in ``value``."""

    @property
    @abstractmethod
    def split_tokens(self) -> int:
        """1 where threads share out tokens, 0 where each takes all."""

    def token_reads(self, *values: Value) -> list[Access]:
        """Reads of whole tokens."""
        return [(v, TOKENS if self.split_tokens else EVERYTHING, False) for v in values]

    # ---- the vocabulary ------------------------------------------------------------

    def embed(self, w: Matrix, scale: float = 1.0) -> Value:
        return self._rows_of(w, FIELDS["ids"], scale * w.factor)

    def embed_positions(self, w: Matrix) -> Value:
        return self._rows_of(w, FIELDS["positions"], 1.0)

    def _rows_of(self, w: Matrix, field: int, scale: float) -> Value:
        """The rows of w whose numbers are in a field of the control block."""
        out = self.whole_tokens(w.n_cols)
        self._put_rows(w, field, scale, out, out, [])
        return out

    def _put_rows(
        self,
        w: Matrix,
        field: int,
        scale: float,
        out: Value,
        here: Value | At,
        reads: list[Access],
        **control: At,
    ) -> None:
        """Write the rows of w whose numbers are in a field of the control block to ``here`` in ``out``."""
        bound = self.binding.matrix(w)
        kernels = bound.kernels
        self.emit(
            kernels.embed,
            [*reads, (out, out.partition, True)],
            weights=bound.address,
            number=8 * field,
            row_bytes=bound.row_bytes,
            blocks=w.n_cols // kernels.block,
            block=kernels.block,
            out=here,
            n=w.n_cols,
            scale=scale,
            **control,
        )

    def rms_norm(self, x: Value, w: Vector, eps: float) -> Value:
        return self._norm("norms:rms_norm", x, w, None, eps)

    def layer_norm(self, x: Value, w: Vector, bias: Vector | None, eps: float) -> Value:
        return self._norm("norms:layer_norm", x, w, bias, eps)

    def _norm(self, kernel: str, x: Value, w: Vector, bias: Vector | None, eps: float) -> Value:
        out = self.whole_tokens(x.n, x)
        self.emit(
            kernel,
            [*self.token_reads(x), (out, out.partition, True)],
            x=x,
            out=out,
            weight=self.binding.vector(w),
            weight_stride=0,
            bias=self.binding.vector(bias) if bias else 0,
            n=x.n,
            first=0,
            last=1,
            eps=eps,
        )
        return out

    def head_rms_norm(self, x: Value, w: Vector, n_heads: int, eps: float) -> Value:
        return self._head_norm("norms:rms_norm", x, w, n_heads, eps)

    def head_layer_norm(self, x: Value, w: Vector, n_heads: int, eps: float) -> Value:
        return self._head_norm("norms:layer_norm", x, w, n_heads, eps)

    def _head_norm(self, kernel: str, x: Value, w: Vector, n_heads: int, eps: float) -> Value:
        first, last = self._head_range(n_heads)
        return self._in_place(
            kernel,
            x,
            self._head_partition(n_heads),
            out=x,
            weight=self.binding.vector(w),
            weight_stride=4 * w.n if w.rows > 1 else 0,
            bias=0,
            n=x.n // n_heads,
            first=first,
            last=last,
            eps=eps,
        )

    def rope(
        self,
        x: Value,
        n_heads: int,
        rope: Rope,
        scale: float = 1.0,
        position_scale: np.ndarray | None = None,
    ) -> Value:
        if rope.first and (scale != 1.0 or position_scale is not None):
            x, scale, position_scale = self.rope(x, n_heads, NOPE, scale, position_scale), 1.0, None
        table = self.binding.rope(rope)
        first, last = self._head_range(n_heads)
        return self._in_place(
            "rope:rope",
            x,
            self._head_partition(n_heads),
            first=first,
            last=last,
            head_dim=x.n // n_heads,
            n_rot=table.n_rot,
            neox=int(table.neox),
            table=table.address,
            scale=scale,
            position_scale=0 if position_scale is None else self.binding.keep(position_scale),
            from_byte=4 * rope.first,
        )

    def _in_place(
        self, kernel: str, x: Value, partition: Hashable, /, *, from_byte: int = 0, **arguments: Any
    ) -> Value:
        """Emit a kernel that changes x or a copy of it; returns the value with the result.

        from_byte: where in a token the kernel begins.
        """
        here = At(x, lambda thread, n_threads: from_byte) if from_byte else x
        self.emit(kernel, [(x, partition, True)], x=here, **arguments)
        return x

    @abstractmethod
    def _head_range(self, n_heads: int) -> tuple[Any, Any]:
        """First and last head of a thread."""

    @abstractmethod
    def _head_partition(self, n_heads: int) -> Hashable: ...

    def linear(self, x: Value, w: Matrix, bias: Vector | None = None) -> Value:
        if w.factor == 1.0:
            return self._product(x, w, bias)
        y = self.scale(self._product(x, w, None), w.factor)
        return y if bias is None else self.add(y, bias)

    @abstractmethod
    def _product(self, x: Value, w: Matrix, bias: Vector | None) -> Value:
        """x @ w.T + bias, without the factor of w."""

    @abstractmethod
    def add(self, x: Value, y: Value | Vector) -> Value: ...

    @abstractmethod
    def multiply(self, x: Value, y: Value | Vector) -> Value: ...

    def activate(self, x: Value, activation: str) -> Value:
        return self._unary(activation, x)

    def scale(self, x: Value, factor: float) -> Value:
        return x if factor == 1.0 else self._unary("scale", x, parameter=float(factor))

    def clamp(self, x: Value, limit: float) -> Value:
        return self._unary("clamp", x, parameter=float(limit))

    def at_most(self, x: Value, limit: float) -> Value:
        return self._unary("at_most", x, parameter=float(limit))

    @abstractmethod
    def _unary(self, kind: str, x: Value, **parameter: float) -> Value:
        """kind(x), value by value."""

    def gate_heads(self, x: Value, gate: Value, activation: str = "sigmoid") -> Value:
        first, last = self._head_range(gate.n)
        partition = self._head_partition(gate.n)
        out = self.value(x.n, private=False, partition=partition)
        self.emit(
            "pointwise:gate_heads" if activation == "sigmoid" else f"pointwise:gate_heads_{activation}",
            [(x, partition, False), (gate, EVERYTHING, False), (out, partition, True)],
            x=x,
            gate=gate,
            out=out,
            first=first,
            last=last,
            head_dim=x.n // gate.n,
        )
        return out

    def head_part(self, x: Value, n_heads: int, first: int, count: int) -> Value:
        start, last = self._head_range(n_heads)
        partition = self._head_partition(n_heads)
        out = self.value(n_heads * count, private=False, partition=partition)
        reads = partition if x.partition == partition else EVERYTHING
        self.emit(
            "pointwise:head_part",
            [(x, TOKENS if self.split_tokens else reads, False), (out, partition, True)],
            x=x,
            out=out,
            first=start,
            last=last,
            head_dim=x.n // n_heads,
            start=first,
            n=count,
        )
        return out

    @abstractmethod
    def gated(self, gate: Value, up: Value, activation: str) -> Value: ...

    def logits(self, x: Value, w: Matrix, bias: Vector | None = None, cap: float = 0.0) -> None:
        x = self.scale(x, w.factor)
        w = w.rows(0, min(w.n_rows, self.most_logits or w.n_rows))
        out = Value(w.n_rows, floats_bytes(w.n_rows), self.max_outputs, False, Rows(w.n_rows))
        bound = self.binding.matrix(w)
        self._matvec(
            bound, self._output_activations(x, bound.kernels.activations), EVERYTHING, out, COUNT_OUTPUTS
        )
        first, last = share(w.n_rows, rows_unit(w.n_rows))
        here = At(out, lambda t, n: 4 * first(t, n))
        n = Each(lambda t, n: last(t, n) - first(t, n))
        if bias is not None:
            address = self.binding.vector(bias)
            there = Each(lambda t, n: address + 4 * first(t, n))
            self.emit(
                "pointwise:add_row", [(out, out.partition, True)], x=here, y=there, n=n, count=COUNT_OUTPUTS
            )
        if cap:
            self.emit(
                "pointwise:softcap", [(out, out.partition, True)], x=here, n=n, cap=cap, count=COUNT_OUTPUTS
            )
        self.logits_value = out

    def _output_activations(self, x: Value, kind: str) -> Value:
        """The activations of the tokens whose logits are wanted, in one of layout.ACTIVATION_FORMATS."""
        out = Value(
            x.n, ACTIVATION_FORMATS[kind].size(x.n), self.max_outputs, not self.split_tokens, "outputs"
        )
        self.emit(
            f"activations:{kind}",
            [(x, EVERYTHING, False), (out, "outputs", True)],
            x=x,
            out=out,
            first=0,
            last=padded_units(x.n, kind),
            real=real_units(x.n, kind),
            gather=1,
            count=COUNT_OUTPUTS,
        )
        return out

    def _matvec(self, w: BoundMatrix, x: Value, reads: Hashable, out: Value, count: int) -> None:
        """Emit the matrix-vector kernel of w."""
        accesses, arguments = self._matvec_arguments(w, w.n_rows, x, reads, out, count)
        first, _ = share(w.n_rows, rows_unit(w.n_rows))
        stream: Stream = (w.address, lambda t, n: first(t, n) * w.row_bytes)
        self.emit(w.kernels.matvec, accesses, stream, **arguments)

    def _matvec_arguments(
        self, w: BoundMatrix, n_rows: int, x: Value, reads: Hashable, out: Value, count: int
    ) -> tuple[list[Access], dict[str, Any]]:
        """What a matrix-vector kernel touches, and its arguments; of w the first n_rows."""
        first, last = share(n_rows, rows_unit(n_rows))
        kernels = w.kernels
        steps, tail = divmod(w.n_cols, kernels.step)
        scratch = self.scratch(MAX_COLUMNS * COLUMN_SUMS)
        accesses: list[Access] = [
            (x, reads, False),
            (out, out.partition, True),
            (scratch, EVERYTHING, True),
        ]
        arguments = {
            **w.arguments,
            "first": Each(first),
            "last": Each(last),
            "x": x,
            "steps": steps,
            "tail": tail // kernels.block,
            "out": out,
            "count": count,
            "scratch": scratch,
        }
        return accesses, arguments
