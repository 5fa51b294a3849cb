"""Mixtures of experts as steps of a program.

The choice is made inside the program: a ``Routing`` stands for a block of memory that a run
fills (kernels/routing.py), and the values of experts have a row for each pair of a token and
one of its experts, sorted by expert.  That block counts their rows, as the control block counts
the tokens of other values.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmgen.backends.cpu.kernels import table_arguments  # noqa: F401 - the step's table
from llmgen.backends.cpu.kernels.expert_arguments import SCORES, choose_scratch
from llmgen.backends.cpu.kernels.layout import FIELDS
from llmgen.backends.cpu.kernels.routing import (
    ROW_UNIT,
    most_rows,
    next_rows_at,
    pair_rows_at,
    routing_bytes,
    row_tokens_at,
)
from llmgen.backends.cpu.partitions import TOKENS
from llmgen.backends.cpu.plan import EVERYTHING, Access, At, Each, Value
from llmgen.backends.cpu.recorder import Recorder
from llmgen.model.ops import Scores
from llmgen.model.weights import Experts, Matrix, Vector


@dataclass(frozen=True, eq=False)
class Routing:
    """Which experts the tokens of a run have chosen."""

    n_used: int
    most: int
    """How often a token can choose the same expert."""
    weights: Value
    """[tokens, n_used]"""
    block: Value
    """The routing block; each thread has its own."""
    rows: Value
    """Has as many rows as the values of experts, and nothing else."""


Part = tuple[Hashable, Callable[[int, int], int], Any]
"""What a thread takes of a value that is computed value by value: a partition, the offset of
its values in bytes, and their number."""


class ExpertRecorder(Recorder):
    """The part of the vocabulary that is about experts."""

    def choose_experts(
        self,
        logits: Value,
        n_used: int,
        scores: Scores = "softmax",
        *,
        bias: Vector | None = None,
        groups: tuple[int, int] = (1, 1),
        normalize: bool = False,
        scale: float = 1.0,
        shared_by: int = 1,
    ) -> Routing:
        ids, weights, accesses = self._choice(logits, n_used)
        scratch = self.scratch(choose_scratch(logits.n, groups[0]))
        self.emit(
            "expert_choice:choose",
            [*accesses, (scratch, EVERYTHING, True)],
            logits=logits,
            n_experts=logits.n,
            n_used=n_used,
            scores=SCORES.index(scores),
            bias=0 if bias is None else self.binding.vector(bias),
            n_groups=groups[0],
            n_groups_used=groups[1],
            normalize=int(normalize),
            scale=float(scale),
            shared_by=shared_by,
            ids=ids,
            weights=weights,
            scratch=scratch,
        )
        return self._sorted(ids, weights, logits.n // shared_by, min(shared_by, n_used))

    def _choice(self, logits: Value, n_used: int) -> tuple[Value, Value, list[Access]]:
        """The ids and weights of each token's experts, and how the step that chooses them uses memory."""
        private, partition = not self.split_tokens, TOKENS if self.split_tokens else EVERYTHING
        ids = Value(0, -(-n_used // 8) * 64, self.max_tokens, private, partition)
        weights = self.whole_tokens(n_used)
        return ids, weights, [*self.token_reads(logits), (ids, partition, True), (weights, partition, True)]

    def look_up_experts(
        self, logits: Value, table: np.ndarray, *, normalize: bool = False, scale: float = 1.0
    ) -> Routing:
        n_used = table.shape[1]
        ids, weights, accesses = self._choice(logits, n_used)
        scratch = self.scratch(-(-logits.n // 16) * 64)
        self.emit(
            "expert_table:look_up",
            [*accesses, (scratch, EVERYTHING, True)],
            logits=logits,
            n_experts=logits.n,
            n_used=n_used,
            table=self.binding.keep(np.ascontiguousarray(table, np.int64)),
            number=8 * FIELDS["ids"],
            normalize=int(normalize),
            scale=float(scale),
            ids=ids,
            weights=weights,
            scratch=scratch,
        )
        row = np.sort(table, axis=1)
        return self._sorted(ids, weights, logits.n, n_used if (row[:, 1:] == row[:, :-1]).any() else 1)

    def _sorted(self, ids: Value, weights: Value, n_experts: int, most: int) -> Routing:
        """Sort the pairs by expert; every thread does so for itself."""
        n_used = weights.n
        unit, n_pairs = ROW_UNIT if self.split_tokens else 1, self.max_tokens * n_used
        block = Value(0, routing_bytes(n_experts, n_pairs, unit), 1, True)
        rows = Value(0, 0, most_rows(n_experts, n_pairs, unit), False, counter=block)
        routing = Routing(n_used, most, weights, block, rows)
        self.emit(
            "experts:sort",
            [(ids, EVERYTHING, False), (block, EVERYTHING, True)],
            ids=ids,
            n_used=n_used,
            n_experts=n_experts,
            unit=unit,
            next_rows=next_rows_at(n_experts),
            pair_rows=pair_rows_at(n_experts),
            row_tokens=row_tokens_at(n_experts, n_pairs),
            routing=block,
        )
        return routing

    def expert_linear(
        self,
        x: Value,
        w: Experts,
        choice: Routing,
        bias: Matrix | None = None,
        scales: Vector | None = None,
    ) -> Value:
        out = self._expert_product(x, w, choice)
        if bias is not None or scales is not None:
            self._scale_and_shift(out, bias, scales)
        return out

    @abstractmethod
    def _expert_product(self, x: Value, w: Experts, routing: Routing) -> Value:
        """The matrices of the chosen experts times x."""

    def _scale_and_shift(self, x: Value, bias: Matrix | None, scales: Vector | None) -> None:
        partition, shift, n = self._part(x)
        address = 0 if bias is None else self.binding.float_rows(bias)
        self.emit(
            "experts:scale_and_shift",
            [(x, partition, True)],
            x=At(x, shift),
            scales=0 if scales is None else self.binding.vector(scales),
            shifts=Each(lambda t, n: address + shift(t, n)) if address else 0,
            shift_bytes=0 if bias is None else bias.tensor.row_bytes,
            n=n,
        )
        x.partition = partition

    def spread(self, x: Value, choice: Routing) -> Value:
        return self._gathered(x, choice, weighted=True)

    def _gathered(self, x: Value, routing: Routing, weighted: bool = False) -> Value:
        """The row of x for each pair of a token and an expert."""
        if (routing, weighted) in x.copies:
            return x.copies[routing, weighted]
        partition, shift, n = self._part(x)
        out = self.value(x.n, partition == EVERYTHING, partition, like=routing.rows)
        everywhere = EVERYTHING if self.split_tokens else partition
        accesses: list[Access] = [(x, everywhere, False), (out, partition, True)]
        weights: dict[str, Any] = {"weights": 0}
        if weighted:
            accesses.append((routing.weights, EVERYTHING, False))
            weights = {"weights": routing.weights}
        self.emit(
            "experts:gather",
            accesses,
            **weights,
            **({} if weighted else {"weights_stride": 0}),
            n_used=routing.n_used,
            x=At(x, shift),
            out=At(out, shift),
            n=n,
            routing=routing.block,
        )
        x.copies[routing, weighted] = out
        return out

    def mix(self, x: Value, choice: Routing, *, weighted: bool = True) -> Value:
        partition, shift, n = self._part(x)
        out = self.value(x.n, partition == EVERYTHING, partition)
        everywhere = EVERYTHING if self.split_tokens else partition
        accesses: list[Access] = [(x, everywhere, False), (out, partition, True)]
        weights: dict[str, Any] = {"weights": 0, "weights_stride": 0}
        if weighted:
            accesses += self.token_reads(choice.weights)
            weights = {"weights": choice.weights}
        self.emit(
            "experts:mix",
            accesses,
            **weights,
            x=At(x, shift),
            n_used=choice.n_used,
            out=At(out, shift),
            n=n,
            routing=choice.block,
            control=self.control,
        )
        return out

    @abstractmethod
    def _part(self, x: Value) -> Part:
        """What a thread takes of x."""
