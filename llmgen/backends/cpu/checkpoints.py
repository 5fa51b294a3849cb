"""Copies of the states that cannot be cut, at some lengths of a sequence."""

from __future__ import annotations

MOST = 32
"""Checkpoints of one sequence."""
MOST_BYTES = 256 << 20
"""Bytes of all of them; two are kept whatever they take."""

Copies = list[bytes]
"""What ``Sequence.checkpointed`` gave, part by part."""


class Checkpoints:
    """Checkpoints by length; where there would be too many, one that has others near is given up."""

    def __init__(self, known: dict[int, Copies] | None = None) -> None:
        self._known = dict(known or {})

    @property
    def lengths(self) -> list[int]:
        """The lengths of which there is one, ascending."""
        return sorted(self._known)

    def at(self, length: int) -> Copies | None:
        """The states at a length."""
        return self._known.get(length)

    def add(self, length: int, copies: Copies) -> None:
        """Keep a checkpoint."""
        self._known[length] = copies
        size = max(1, sum(map(len, copies)))
        while len(self._known) > max(2, min(MOST, MOST_BYTES // size)):
            del self._known[self._least_useful()]

    def _least_useful(self) -> int:
        """The length, but for the last one, whose loss leaves the smallest gap."""
        lengths = [0, *self.lengths]
        gaps = {lengths[i]: lengths[i + 1] - lengths[i - 1] for i in range(1, len(lengths) - 1)}
        return min(gaps, key=lambda length: gaps[length])

    def cut(self, n: int) -> None:
        """Give up those behind the first n tokens."""
        self._known = {length: copies for length, copies in self._known.items() if length <= n}

    def latest(self, count: int) -> dict[int, Copies]:
        """The ``count`` last ones, ascending."""
        return {length: self._known[length] for length in self.lengths[-count:]}

    def copy(self) -> Checkpoints:
        """The same ones; what they hold is shared, since nobody changes it."""
        return Checkpoints(self._known)
