"""One sequence of tokens and everything a model remembers of it."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import numpy as np

from llmgen.backends.cpu.checkpoints import Checkpoints
from llmgen.backends.cpu.large_states import FIRST_LENGTH, LargeStates
from llmgen.backends.cpu.memory import anonymous
from llmgen.backends.cpu.states import StateLayout
from llmgen.errors import ContextFullError, LLMGenError


class Sequence:
    """One sequence of tokens with its states.  Made by ``Model.new_sequence``.

    The address space for the whole context is reserved at once and touched as it fills.
    ``length`` counts committed tokens; a run that fails or is stopped commits nothing.
    """

    def __init__(self, layout: StateLayout) -> None:
        self.layout = layout
        self.length = 0
        self._written = 0
        self.checkpoints = Checkpoints()
        self._memory: mmap.mmap | None = None
        self._large: LargeStates | None = None
        self._data: np.ndarray | None = None
        self.address = 0
        """Of the states, as long as :meth:`memory` is held."""
        self._reserve()

    def _reserve(self) -> None:
        try:
            self._memory = anonymous(self.layout.nbytes)
        except (OSError, ValueError, OverflowError) as error:
            raise LLMGenError(
                f"a KV cache for {self.n_ctx} tokens needs {self.layout.nbytes / 2**20:,.0f} MiB of address space, "
                "which the system refuses; choose a smaller context (-c)"
            ) from error
        self._data = np.frombuffer(self._memory, dtype=np.uint8)
        self.address = int(self._data.ctypes.data)
        self._large = LargeStates(self._memory, self.address)

    # ---- appending tokens ------------------------------------------------------------

    @property
    def n_ctx(self) -> int:
        """Tokens that fit in all."""
        return self.layout.n_ctx

    @property
    def needs_checkpoint(self) -> bool:
        """Whether an earlier length can only be restored from a copy (``checkpoint``)."""
        return self.layout.needs_checkpoint

    def memory(self) -> np.ndarray:
        """The states, uint8.  The memory stays mapped as long as the caller keeps this array."""
        if self._data is None:
            raise LLMGenError("this sequence is closed; make a new one")
        return self._data

    def room(self) -> int:
        """Tokens that still fit into the context."""
        return self.n_ctx - self.length

    def begin_write(self, length: int) -> None:
        """Positions up to ``length`` are about to be written, which may overwrite the oldest keys of a window."""
        self._written = max(self._written, length)

    def commit(self, n: int) -> None:
        """n more tokens are in the states."""
        self.length += n
        self.begin_write(self.length)

    def after_step(self, seconds: float) -> None:
        """A generated token took so long: part of that may go into making the next ones faster."""
        if self.length >= FIRST_LENGTH and self._large is not None:
            self._large.after(seconds, self.length, self._spans)

    # ---- going back -----------------------------------------------------------------

    def checkpoint(self) -> None:
        """Copy the states that cannot be cut, so that this length can be returned to.

        Does nothing if every state can be cut.  Where there are many earlier checkpoints, some are dropped.
        """
        if self.layout.needs_checkpoint and self.length and self.length not in self.checkpoints.lengths:
            self.checkpoints.add(self.length, [part.tobytes() for part in self.checkpointed()])

    def cut_point(self, n: int) -> int:
        """The largest length up to n to which the sequence can be cut back; 0 is always one."""
        return self.length if n >= self.length else self._whole_at(n)

    def _whole_at(self, n: int) -> int:
        """The largest length up to n at which every state can be restored."""
        if self.layout.needs_checkpoint:
            n = max((length for length in self.checkpoints.lengths if length <= n), default=0)
        cuttable = (state for state in self.layout.states if not state.needs_checkpoint)
        shortest = max((state.shortest_cut(self._written) for state in cuttable), default=0)
        return n if n >= min(shortest, self.length) else 0

    def can_take_back(self, n: int) -> bool:
        """Whether n tokens could be cut off again if they were appended now."""
        if self.layout.needs_checkpoint:
            return False
        written = max(self._written, self.length + n)
        return all(state.shortest_cut(written) <= self.length for state in self.layout.states)

    def truncate(self, n: int) -> None:
        """Cut back to n tokens.  Raises ContextFullError if that is not a cut point."""
        if not 0 <= n <= self.length:
            raise LLMGenError(
                f"cannot cut a sequence of {self.length} tokens to {n}; choose 0 to {self.length}"
            )
        if self.cut_point(n) != n:
            raise ContextFullError(
                f"cannot cut back to {n} tokens: a sliding window or a recurrent state no longer has "
                "what it had there; start from 0 and compute the tokens again"
            )
        if n < self.length:
            self._restore(n)
        self.length = n
        if n == 0:
            self._written = 0

    def roll_back(self) -> None:
        """A run over this sequence failed: return to a length at which every state is complete.

        That is the present length, or if a state cannot be cut, a checkpoint or 0.
        """
        if self.layout.needs_checkpoint:
            n = self._whole_at(self.length)
            self._restore(n)
            self.length = n
            if n == 0:
                self._written = 0

    def _restore(self, n: int) -> None:
        """Restore the states that cannot be cut to length n."""
        copies = iter(self.checkpoints.at(n) or ())
        for part in self.checkpointed():
            part[:] = np.frombuffer(next(copies), np.uint8) if n else 0
        self.checkpoints.cut(n)

    def clear(self) -> None:
        """Forget all tokens."""
        self.truncate(0)

    # ---- copies ---------------------------------------------------------------------

    def fork(self) -> Sequence:
        """A second sequence with the same tokens and its own states; copies only what is filled."""
        other = Sequence(self.layout)
        other.length, other._written, other.checkpoints = self.length, self._written, self.checkpoints.copy()
        for mine, its in zip(self.filled(), other.filled(), strict=True):
            its[:] = mine
        return other

    def become(self, other: Sequence, common: int) -> None:
        """Take over the tokens and states of another sequence of the same model.

        The first ``common`` tokens are the same in both, computed in the same roles; copies
        only what may differ.
        """
        if other.layout is not self.layout or not 0 <= common <= min(self.length, other.length):
            raise LLMGenError(
                f"a sequence of {self.length} tokens cannot share {common} with one of {other.length};"
                " both must belong to one model and have these tokens"
            )
        mine, its = self.memory(), other.memory()
        written = max(self._written, other._written)
        for state in self.layout.states:
            for first, last in state.spans(common, written):
                mine[first:last] = its[first:last]
        self.length, self._written, self.checkpoints = other.length, other._written, other.checkpoints.copy()

    def filled(self) -> Iterator[np.ndarray]:
        """The parts of the memory that are in use, uint8, state by state."""
        memory = self.memory()
        for first, last in self._spans():
            yield memory[first:last]

    def _spans(self) -> Iterator[tuple[int, int]]:
        """Where in the memory the parts in use are, as ``PlacedState.spans`` gives them."""
        for state in self.layout.states:
            yield from state.spans(0, self._written)

    def checkpointed(self) -> Iterator[np.ndarray]:
        """The parts of the memory that a checkpoint copies, uint8, state by state."""
        memory = self.memory()
        for state in self.layout.states:
            if state.needs_checkpoint:
                for first, last in state.spans(0, self._written):
                    yield memory[first:last]

    @property
    def written(self) -> int:
        """The longest length since the sequence was last empty, uncommitted runs included."""
        return self._written

    def restore(self, length: int, written: int) -> None:
        """Set the length of a sequence whose states are about to be read from a file into ``filled``."""
        self.length, self._written = length, written

    def stand_in(self, n: int) -> None:
        """Take n tokens of an empty sequence to be computed; all states are zero, in memory that has been written."""
        self.begin_write(n)
        for part in self.filled():
            part[:] = 0
        self.commit(n)

    def close(self) -> None:
        """Give the memory back."""
        self._data = self._large = None
        self._memory = None
