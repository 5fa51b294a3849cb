"""Tables of rotary positions, filled as far as runs have come."""

from __future__ import annotations

import numpy as np

from llmgen.backends.cpu.memory import Arena
from llmgen.model.rope import Rope

_STEP = 256  # positions added at a time


class RopeTable:
    """``Rope.rows`` for every position up to n_ctx, float32 [n_ctx][2][n_rot], at ``address``."""

    def __init__(self, rope: Rope, n_ctx: int) -> None:
        self.n_rot, self.neox = rope.n_rot, rope.neox
        self._rope, self._n_ctx, self._filled = rope, n_ctx, 0
        self._memory = Arena(max(4, n_ctx * rope.n_rot * 8), "the table of rotary positions")
        self._table = self._memory.data.view(np.float32)[: n_ctx * 2 * rope.n_rot]
        self.address = self._table.ctypes.data if rope.n_rot and n_ctx else 0

    def fill(self, length: int) -> None:
        """Make the rows of positions 0 .. length - 1 valid."""
        if length <= self._filled:
            return
        rows = self._table.reshape(self._n_ctx, 2, self.n_rot)
        while self._filled < length and self.n_rot:
            last = min(self._filled + _STEP, self._n_ctx)
            rows[self._filled : last] = self._rope.rows(self._filled, last)
            self._filled = last
