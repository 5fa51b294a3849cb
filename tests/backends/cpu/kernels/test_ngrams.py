"""Which rows of a table belong to several tokens, against Python's whole numbers."""

from __future__ import annotations

import numpy as np
from kernels.call import ControlBlock, aligned, require, step

from llmgen.backends.cpu.kernels.layout import FIELDS
from llmgen.backends.cpu.kernels.ngram_arguments import CONTROL_BYTES, row_block_bytes
from llmgen.backends.numpy.functions import ngram_rows
from llmgen.model.ngrams import NGrams

NGRAMS = NGrams(
    size=3,
    multipliers=(0x9E3779B97F4A7C15, (1 << 64) - 1, 3 << 61),
    offsets=(0, 50, 100, 7),
    rows=(50, 49, 47, 3),
    end=5,
)


def found(ids: list[int], state: np.ndarray, n_threads: int = 2) -> np.ndarray:
    """Rows [tokens, heads] by the kernel; state: the tokens before, which it brings up to date."""
    n, heads = len(ids), NGRAMS.n_heads
    block = aligned(row_block_bytes(heads, n) // 8, np.int64, -9)
    for thread in reversed(range(n_threads)):
        step(
            "ngrams:rows",
            thread,
            n_threads,
            size=NGRAMS.size,
            heads=heads,
            heads_each=heads // (NGRAMS.size - 1),
            multipliers=np.array(NGRAMS.multipliers, np.uint64),
            offsets=np.array(NGRAMS.offsets, np.int64),
            rows=np.array(NGRAMS.rows, np.int64),
            end=NGRAMS.end,
            state_at=0,
            room=n,
            block=block,
            control=ControlBlock(n, ids=ids, sequences=[state.ctypes.data] * n),
        )
    for head in range(heads):
        fields = block[head * CONTROL_BYTES // 8 :]
        assert fields[FIELDS["n_tokens"]] == n
        assert fields[FIELDS["ids"]] == block.ctypes.data + heads * CONTROL_BYTES + 8 * head * n
    return block[heads * CONTROL_BYTES // 8 :].reshape(heads, n).T


def by_hand(tokens: list[int], head: int) -> int:
    """The row of a head for tokens of which the last comes first."""
    total = 0
    for token, multiplier in zip(tokens, NGRAMS.multipliers, strict=False):
        total ^= token * multiplier % 2**64
    return NGRAMS.offsets[head] + total % NGRAMS.rows[head]


def test_rows_of_pairs_and_triples() -> None:
    require(["ngrams:rows"])
    ids = [9, 1 << 20, 5, 7, 8, 8]
    tokens = [[9, 5, 5], [1 << 20, 9, 5], [5, 1 << 20, 9], [7, 5, 5], [8, 7, 5], [8, 8, 7]]
    expected = [[by_hand(three[: 2 + head // 2], head) for head in range(4)] for three in tokens]
    whole, state = aligned(8, np.int64), aligned(8, np.int64)
    np.testing.assert_array_equal(found(ids, whole), expected)
    pieces = [found(part, state) for part in (ids[:1], ids[1:4], ids[4:])]
    np.testing.assert_array_equal(np.concatenate(pieces), expected)
    assert whole[:3].tolist() == state[:3].tolist() == [9, 9, 0]
    rows, before = ngram_rows(np.array(ids), np.zeros(2, np.int64), NGRAMS)
    np.testing.assert_array_equal(rows, expected)
    assert before.tolist() == [9, 9]
