"""A list of token ids that is also an array."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


class History:
    """Token ids that only grow, readable as an int64 array without a copy."""

    def __init__(self, ids: Iterable[int] = ()) -> None:
        start = np.array(list(ids), dtype=np.int64)
        self._buffer = np.zeros(max(256, 2 * len(start)), dtype=np.int64)
        self._buffer[: len(start)] = start
        self._n = len(start)

    def append(self, token: int) -> None:
        """Add one id at the end."""
        if self._n == len(self._buffer):
            self._buffer = np.concatenate((self._buffer, np.zeros_like(self._buffer)))
        self._buffer[self._n] = token
        self._n += 1

    def copy(self) -> History:
        """An independent copy."""
        twin = History()
        twin._buffer, twin._n = self._buffer.copy(), self._n
        return twin

    @property
    def tokens(self) -> NDArray[np.int64]:
        """The ids so far, int64 [n]: a view."""
        return self._buffer[: self._n]

    def __len__(self) -> int:
        return self._n
