"""What a run needs: the control block, the recorded programs with their tables, the working memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmgen.backends.cpu.kernels.decode_plan import CONTROL_WORDS, LOCAL, STREAMS, TOGETHER
from llmgen.backends.cpu.kernels.layout import FIELDS, MAX_COLUMNS
from llmgen.backends.cpu.memory import Arena
from llmgen.backends.cpu.plan import Plan
from llmgen.backends.cpu.recorder import Recorder
from llmgen.backends.cpu.runtime.library import KernelLibrary
from llmgen.backends.cpu.runtime.thread_policy import ThreadPolicy


class Control:
    """The control block of a run (kernels/layout.FIELDS and kernels/decode_plan) and the arrays it points to."""

    def __init__(self, max_tokens: int) -> None:
        size = max(max_tokens, MAX_COLUMNS)
        self._fields = np.zeros(CONTROL_WORDS, np.int64)
        self._ids, self._positions, self._ends, self._sequences, self._rows = (
            np.zeros(size, np.int64) for _ in range(5)
        )
        for name, array in (
            ("ids", self._ids),
            ("positions", self._positions),
            ("run_ends", self._ends),
            ("sequences", self._sequences),
            ("output_rows", self._rows),
        ):
            self._fields[FIELDS[name]] = array.ctypes.data
        self.address = int(self._fields.ctypes.data)
        # the same memory for single values, which is quicker than arrays
        self._words, self._one_row = self._fields.data, self._rows.data
        self._one_token = tuple(a.data for a in (self._ids, self._positions, self._ends, self._sequences))
        self.plan(MAX_COLUMNS, 1, 0)

    def plan(self, together: int, streams: int, local: int) -> None:
        """Set how generated tokens attend, as kernels/decode_plan says it; streams: a power of two."""
        self._words[TOGETHER // 8], self._words[LOCAL // 8] = together, local
        self._words[STREAMS // 8] = streams.bit_length() - 1

    def fill(self, parts: list[tuple[Sequence[int] | np.ndarray, int, int, int]]) -> None:
        """Set the tokens of a run, part after part: ids, position of the first, address of the
        states, and for how many tokens at the end logits are wanted."""
        n = n_outputs = 0
        for ids, first, states, wanted in parts:
            end = n + len(ids)
            if len(ids) == 1:  # without numpy, since little time should pass between two generated tokens
                for array, value in zip(self._one_token, (int(ids[0]), first, first, states), strict=True):
                    array[n] = value
            else:
                self._ids[n:end] = ids
                self._positions[n:end] = np.arange(first, first + len(ids))
                self._ends[n:end] = first + len(ids) - 1
                self._sequences[n:end] = states
            if wanted == 1:
                self._one_row[n_outputs] = end - 1
            else:
                self._rows[n_outputs : n_outputs + wanted] = np.arange(end - wanted, end)
            n, n_outputs = end, n_outputs + wanted
        self._words[FIELDS["n_tokens"]] = n
        self._words[FIELDS["n_outputs"]] = n_outputs


class Program:
    """A recorded program and its tables, one set per thread count."""

    def __init__(self, recorder: Recorder, policy: ThreadPolicy) -> None:
        self.policy = policy
        assert recorder.logits_value is not None
        self.recorder = recorder
        self.plan = Plan(recorder.steps, [recorder.logits_value])
        self._tables: dict[int, tuple[np.ndarray, tuple[int, int, int]]] = {}

    def table(self, n_threads: int, workspace: Workspace, library: KernelLibrary) -> tuple[int, int, int]:
        """Address of thread 0's table, bytes between the threads' tables, steps."""
        if n_threads not in self._tables:
            private = workspace.private(n_threads)
            table = self.plan.table(n_threads, workspace.shared.address, private, library.address)
            # numpy takes its time to tell an address, which this is asked for before every token
            self._tables[n_threads] = table, (int(table.ctypes.data), table.strides[0], len(self.plan.steps))
        return self._tables[n_threads][1]


class Workspace:
    """The arenas of both programs, which never run at the same time."""

    def __init__(self, *programs: Program) -> None:
        self._private_bytes = max(p.plan.private_bytes for p in programs) + 4096
        self.shared = Arena(max(p.plan.shared_bytes for p in programs) + 4096, "the model's working memory")
        self._private: list[Arena] = []
        self._rows: dict[tuple[int, int, int], np.ndarray] = {}

    def rows(self, offset: int, stride: int, n: int) -> np.ndarray:
        """The shared memory from ``offset`` on, in rows of ``stride`` bytes: the first n floats of each, [rows, n]."""
        rows = self._rows.get((offset, stride, n))
        if rows is None:
            floats, size = self.shared.floats[offset // 4 :], stride // 4
            whole = floats[: len(floats) // size * size].reshape(-1, size)
            rows = self._rows[offset, stride, n] = whole[:, :n]
        return rows

    def private(self, n_threads: int) -> list[int]:
        """Addresses of n_threads private arenas."""
        while len(self._private) < n_threads:
            self._private.append(Arena(self._private_bytes, "a thread's working memory"))
        return [arena.address for arena in self._private[:n_threads]]

    def close(self) -> None:
        self._private.clear()
        self._rows.clear()
        del self.shared
