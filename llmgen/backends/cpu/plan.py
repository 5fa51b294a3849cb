"""A program: a flat table of steps over preallocated buffers, one table per thread.

The planner takes the recorded steps and decides three things:

- barriers. A value has a *partition*: the way threads share out its elements. Two
  accesses to a shared value, at least one of them a write, need a barrier between
  them unless both use the same partition. That one rule covers read-after-write,
  write-after-read and write-after-write.
- memory. A value lives from its first step to its last. A private value's memory is
  reused after its last step, a shared one's after the next barrier.
- the tables. Every address and row range is resolved for each thread beforehand.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from llmgen.backends.cpu.kernels.layout import STEP_ARGS, STEP_BARRIER, STEP_BYTES, STEP_HEADER, STEP_NEXT

EVERYTHING = "everything"
"""The partition of an access in which every thread touches any element."""


@dataclass(eq=False)
class Value:
    """A buffer of the program: ``rows`` rows of ``stride`` bytes.

    private: each thread has a copy; otherwise the threads share one.
    """

    n: int  # values per row
    stride: int
    rows: int
    private: bool
    partition: Hashable = EVERYTHING  # how it was written
    offset: int = -1  # in its arena, set by the planner
    copies: dict[Hashable, Value] = field(default_factory=dict)  # the same values quantized, shared or sorted
    counter: Value | None = None  # what says how many rows there are, if they are not the tokens of the run

    @property
    def nbytes(self) -> int:
        return -(-self.stride * self.rows // 64) * 64


@dataclass(frozen=True)
class At:
    """The address of a value, plus bytes that depend on the thread."""

    value: Value
    shift: Callable[[int, int], int]

    @property
    def stride(self) -> int:
        return self.value.stride


@dataclass(frozen=True)
class Each:
    """A number that depends on the thread: ``number(thread, n_threads)``."""

    number: Callable[[int, int], int]


@dataclass(frozen=True)
class KernelAddress:
    """The address of a kernel that a step calls itself."""

    name: str


Argument = int | float | Value | At | Each | KernelAddress


Access = tuple[Value, Hashable, bool]
"""What a step touches: a value, in which partition, and whether it writes."""


Stream = tuple[int, Callable[[int, int], int]]
"""Weights that a step reads in order: their address, and the offset at which a thread begins."""


@dataclass
class Step:
    """A kernel, its arguments, and what it touches."""

    kernel: str
    args: NamedTuple  # of Argument, the kernel's table (kernels/arguments.py)
    accesses: list[Access]
    stream: Stream | None = None  # to prefetch
    barrier: bool = False

    def rename(self, names: Mapping[Value, Value]) -> None:
        """Replace each value v by names[v]."""
        if any(v in names for v, _, _ in self.accesses):
            self.args = self.args._make(_renamed(a, names) for a in self.args)
            self.accesses = [(names.get(v, v), p, w) for v, p, w in self.accesses]


def _renamed(argument: Argument, names: Mapping[Value, Value]) -> Argument:
    if isinstance(argument, Value):
        return names.get(argument, argument)
    if isinstance(argument, At):
        return At(names.get(argument.value, argument.value), argument.shift)
    return argument


class Plan:
    """Steps with barriers, and a place in memory for each value."""

    def __init__(self, steps: list[Step], outputs: Iterable[Value] = ()) -> None:
        self.steps = steps
        self._place_barriers()
        self.private_bytes, self.shared_bytes = self._place_values(set(outputs))

    @property
    def kernels(self) -> list[str]:
        called = [a.name for step in self.steps for a in step.args if isinstance(a, KernelAddress)]
        return list(dict.fromkeys([*(step.kernel for step in self.steps), *called]))

    def _place_barriers(self) -> None:
        since: dict[Value, list[tuple[Hashable, bool]]] = {}
        for i, step in enumerate(self.steps):
            shared = [(v, p, w) for v, p, w in step.accesses if not v.private]
            if any(_conflict(p, w, before) for v, p, w in shared for before in since.get(v, ())):
                self.steps[i - 1].barrier = True
                since.clear()
            for v, p, w in shared:
                since.setdefault(v, []).append((p, w))
        self.steps[-1].barrier = True

    def _place_values(self, outputs: set[Value]) -> tuple[int, int]:
        """First fit over lifetimes; a lifetime is counted in steps, for shared values in barriers."""
        epoch = 0
        epochs = []
        life: dict[Value, tuple[int, int]] = {}
        for i, step in enumerate(self.steps):
            epochs.append(epoch)
            epoch += step.barrier
            for value, _, _ in step.accesses:
                life[value] = (life.get(value, (i, i))[0], i)
        sizes = {True: 0, False: 0}
        placed: dict[bool, list[tuple[int, int, int]]] = {True: [], False: []}  # offset, end, last use
        for value in sorted(life, key=lambda v: life[v][0]):
            first, last = life[value]
            if not value.private:
                first, last = epochs[first], epochs[last]
            if value in outputs:
                last = len(self.steps)
            busy = sorted(p for p in placed[value.private] if p[2] >= first)
            offset = 0
            for start, end, _ in busy:
                if offset + value.nbytes <= start:
                    break
                offset = max(offset, end)
            value.offset = offset
            placed[value.private] = [*busy, (offset, offset + value.nbytes, last)]
            sizes[value.private] = max(sizes[value.private], offset + value.nbytes)
        return sizes[True], sizes[False]

    def table(
        self, n_threads: int, shared: int, private: list[int], address: Callable[[str], int]
    ) -> np.ndarray:
        """int64 [n_threads][steps][STEP_BYTES / 8] for arenas at the given addresses."""
        table = np.zeros((n_threads, len(self.steps) + 2, STEP_BYTES // 8), dtype=np.int64)
        for i, step in enumerate(self.steps):
            assert len(step.args) <= STEP_ARGS, step.kernel
            table[:, i, 0] = address(step.kernel)
            table[:, i, STEP_BARRIER // 8] = step.barrier
            for j, argument in enumerate(step.args, STEP_HEADER // 8):
                if isinstance(argument, KernelAddress):
                    argument = address(argument.name)
                table[:, i, j] = _resolve(argument, n_threads, shared, private)
        for thread in range(n_threads):
            upcoming = 0
            for i in reversed(range(len(self.steps))):
                table[thread, i, STEP_NEXT // 8] = upcoming
                if stream := self.steps[i].stream:
                    upcoming = stream[0] + stream[1](thread, n_threads)
        return table


def _conflict(partition: Hashable, writes: bool, before: tuple[Hashable, bool]) -> bool:
    other, wrote = before
    return (writes or wrote) and (partition != other or partition == EVERYTHING)


def _resolve(
    argument: int | float | Value | At | Each, n_threads: int, shared: int, private: list[int]
) -> Any:
    """The table's entry: one number for all threads, or a list."""
    if isinstance(argument, Value):
        if argument.private:
            return [private[t] + argument.offset for t in range(n_threads)]
        return shared + argument.offset
    if isinstance(argument, At):
        base = argument.value.offset
        return [
            (private[t] if argument.value.private else shared) + base + argument.shift(t, n_threads)
            for t in range(n_threads)
        ]
    if isinstance(argument, Each):
        return [argument.number(t, n_threads) for t in range(n_threads)]
    if isinstance(argument, float):
        return struct.unpack("<q", struct.pack("<d", argument))[0]
    return argument
