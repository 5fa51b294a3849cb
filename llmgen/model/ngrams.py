"""Embeddings of the last tokens together, found by a hash of their ids (Qwen 4 Exp)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from llmgen.model.keys import Keys
from llmgen.model.states import Recurrent

MAX_SIZE = 8
MAX_HEADS = 64
MAX_ROWS = (1 << 31) - 1


@dataclass(frozen=True)
class NGrams:
    """For each of several heads a row of a table; the first heads stand for two tokens, the last for ``size``.

    The row of a head is its offset + (xor over the tokens of id * multiplier) modulo its number of rows; the
    product of unsigned 64 bits, the token's own id first. ``end`` stands for tokens that are not there, and
    for those up to the last ``end`` before the token (src/models/qwen4exp.cpp of llama.cpp).
    """

    size: int
    multipliers: tuple[int, ...]
    offsets: tuple[int, ...]
    rows: tuple[int, ...]
    end: int

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """Raises UnsupportedModelError for tables that no file can have."""
        size = keys.whole("ple.ngram_size", low=2, high=MAX_SIZE)
        n_heads = (size - 1) * keys.whole("ple.heads_per_ngram", high=MAX_HEADS // (size - 1))
        return cls(
            size,
            _numbers(keys, "ple.layer_multipliers", size, 0, (1 << 64) - 1),
            _numbers(keys, "ple.head_offsets", n_heads, 0, MAX_ROWS),
            _numbers(keys, "ple.head_vocab_sizes", n_heads, 1, MAX_ROWS),
            keys.whole("ple.eos_token_id", low=0, high=MAX_ROWS),
        )

    @property
    def n_heads(self) -> int:
        """Rows of the table for each token."""
        return len(self.rows)

    @property
    def n_rows(self) -> int:
        """Rows that the table has at least."""
        return max(offset + n for offset, n in zip(self.offsets, self.rows, strict=True))

    @property
    def state(self) -> Recurrent:
        """The ids of the tokens before, plus 1, the last one first; 64 bits each."""
        return Recurrent(2 * (self.size - 1))

    def tokens_of(self, head: int) -> int:
        """How many tokens a head stands for."""
        return 2 + head // (self.n_heads // (self.size - 1))


def _numbers(keys: Keys, key: str, count: int, low: int, high: int) -> tuple[int, ...]:
    """The first ``count`` whole numbers of an array."""
    given = keys.get(key)
    if isinstance(given, np.ndarray) and given.dtype.kind in "iu" and len(given) >= count:
        numbers = tuple(int(n) for n in given[:count])
        if all(low <= n <= high for n in numbers):
            return numbers
    raise keys.refuse(key, f"{count} whole numbers of at least {low}")
