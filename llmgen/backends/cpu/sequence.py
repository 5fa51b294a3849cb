"""One sequence of tokens and everything a model remembers of it."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import numpy as np

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
        self._reached = 0  # the longest length that was written, since the sequence was last empty
        self._copies: dict[int, list[bytes]] = {}  # length -> states that cannot be cut, as they were there
        self._memory: mmap.mmap | None = None
        self._data: np.ndarray | None = None
        self._reserve()

    def _reserve(self) -> None:
        try:
            self._memory = anonymous(self.layout.nbytes)
        except (OSError, ValueError, OverflowError) as error:
            raise LLMGenError(
                f"a KV cache for {self.n_ctx} tokens needs {self.layout.nbytes / 2**20:,.0f} MiB of address space, "
                "which this machine does not give; choose a smaller context (-c)"
            ) from error
        self._data = np.frombuffer(self._memory, dtype=np.uint8)

    # ---- running over it ------------------------------------------------------------

    @property
    def n_ctx(self) -> int:
        """Tokens for which there is room in all."""
        return self.layout.n_ctx

    def memory(self) -> np.ndarray:
        """The states, uint8.  Whoever runs over it keeps this array: it stays mapped while they do."""
        if self._data is None:
            raise LLMGenError("this sequence is closed; make a new one")
        return self._data

    def room(self) -> int:
        """Tokens that still fit into the context."""
        return self.n_ctx - self.length

    def touch(self, length: int) -> None:
        """Positions up to ``length`` are about to be written; a full window loses its oldest keys by that."""
        self._reached = max(self._reached, length)

    def commit(self, n: int) -> None:
        """n more tokens are in the states."""
        self.length += n
        self.touch(self.length)

    # ---- going back -----------------------------------------------------------------

    def checkpoint(self) -> None:
        """Keep a copy of what cannot be cut back, so that this length can be returned to.

        Does nothing where every state can be cut.  Older copies are dropped.
        """
        if self.layout.needs_copies:
            self._copies = {self.length: [part.tobytes() for part in self._uncuttable()]}

    def cut_point(self, n: int) -> int:
        """The largest length up to n to which the sequence can be cut back; 0 is always one."""
        n = min(n, self.length)
        if n == self.length:
            return n
        if self.layout.needs_copies:
            n = max((length for length in self._copies if length <= n), default=0)
        cuttable = (state for state in self.layout.states if not state.needs_copies)
        shortest = max((state.shortest_cut(self._reached) for state in cuttable), default=0)
        return n if n >= min(shortest, self.length) else 0

    def truncate(self, n: int) -> None:
        """Cut back to n tokens.  Raises ContextFullError where the states no longer have what is needed."""
        if not 0 <= n <= self.length:
            raise LLMGenError(
                f"cannot cut a sequence of {self.length} tokens to {n}; choose 0 to {self.length}"
            )
        if self.cut_point(n) != n:
            raise ContextFullError(
                f"cannot cut back to {n} tokens: a sliding window or a recurrent state no longer has what it held "
                "there; start from 0 and compute the tokens again"
            )
        if n < self.length:
            self._restore(n)
        self.length = n
        if n == 0:
            self._reached = 0

    def abandon(self) -> None:
        """A run over this sequence did not end: go back to where every state is whole.

        That is the present length, unless a state cannot be cut; then it is the last checkpoint, or 0.
        """
        if self.layout.needs_copies:
            n = max((length for length in self._copies if length <= self.length), default=0)
            self._restore(n)
            self.length = n

    def _restore(self, n: int) -> None:
        """Put back the states that cannot be cut, as they were at length n."""
        parts = list(self._uncuttable())
        for part, copy in zip(parts, self._copies.get(n, [None] * len(parts)), strict=True):
            part[:] = 0 if copy is None else np.frombuffer(copy, np.uint8)
        self._copies = {length: copies for length, copies in self._copies.items() if length <= n}

    def clear(self) -> None:
        """Forget all tokens."""
        self.truncate(0)

    # ---- copies ---------------------------------------------------------------------

    def fork(self) -> Sequence:
        """A second sequence with the same tokens and states of its own; copies only what is filled."""
        other = Sequence(self.layout)
        other.length, other._reached, other._copies = self.length, self._reached, dict(self._copies)
        for mine, its in zip(self.filled(), other.filled(), strict=True):
            its[:] = mine
        return other

    def become(self, other: Sequence, common: int) -> None:
        """Hold what another sequence of the same model holds, the first ``common`` tokens of which are here already.

        They must have been computed in the same roles.  Copies only what may differ.
        """
        if other.layout is not self.layout or not 0 <= common <= min(self.length, other.length):
            raise LLMGenError(
                f"a sequence of {self.length} tokens cannot share {common} with one of {other.length}; both"
                " must be of one model and have them"
            )
        mine, its = self.memory(), other.memory()
        reached = max(self._reached, other._reached)
        for state in self.layout.states:
            for first, last in state.spans(common, reached):
                mine[first:last] = its[first:last]
        self.length, self._reached, self._copies = other.length, other._reached, dict(other._copies)

    def filled(self) -> Iterator[np.ndarray]:
        """The parts of the memory that hold anything, uint8, state by state."""
        memory = self.memory()
        for state in self.layout.states:
            for first, last in state.spans(0, self._reached):
                yield memory[first:last]

    def _uncuttable(self) -> Iterator[np.ndarray]:
        memory = self.memory()
        for state in self.layout.states:
            if state.needs_copies:
                for first, last in state.spans(0, self._reached):
                    yield memory[first:last]

    @property
    def reached(self) -> int:
        """The longest length that was written, since the sequence was last empty."""
        return self._reached

    def restore(self, length: int, reached: int) -> None:
        """Declare that ``filled`` holds this many tokens: for whoever fills it from a file."""
        self.length, self._reached = length, reached

    def close(self) -> None:
        """Give the memory back."""
        self._data = None
        self._memory = None
