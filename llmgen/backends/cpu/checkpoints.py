"""Copies of the states that cannot be cut, at some lengths of a sequence."""

from __future__ import annotations

MOST = 32
"""Checkpoints of one sequence."""
MOST_BYTES = 256 << 20
"""Bytes of all of them; two are kept whatever they take."""

Copies = list[bytes]
"""What ``Sequence.checkpointed`` gave, part by part."""


class Checkpoints:
    """Checkpoints by length; where there would be too many, one with others close by is dropped."""

    def __init__(self, known: dict[int, Copies] | None = None) -> None:
        self._known = dict(known or {})

    @property
    def lengths(self) -> list[int]:
        """The lengths at which there is a checkpoint, ascending."""
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
        """The length whose loss leaves the smallest gap; never the last one."""
        lengths = [0, *self.lengths]
        gaps = {lengths[i]: lengths[i + 1] - lengths[i - 1] for i in range(1, len(lengths) - 1)}
        return min(gaps, key=lambda length: gaps[length])

    def cut(self, n: int) -> None:
        """Drop the checkpoints beyond the first n tokens."""
        self._known = {length: copies for length, copies in self._known.items() if length <= n}

    def latest(self, count: int) -> dict[int, Copies]:
        """The last ``count`` checkpoints by their lengths, ascending."""
        return {length: self._known[length] for length in self.lengths[-count:]}

    def copy(self) -> Checkpoints:
        """A copy of the collection; the checkpoints in it are shared, since nobody changes them."""
        return Checkpoints(self._known)
