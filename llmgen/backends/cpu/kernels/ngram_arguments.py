"""The arguments of the step that finds embeddings of several tokens; see arguments.py, whose words hold here too.

A *row block* has a control block for each head, of CONTROL_BYTES, and behind them for each head ``room`` int64: the
rows of the table that belong to the tokens, which stand where the ids of tokens are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llmgen.backends.cpu.kernels.arguments import TABLES

CONTROL_BYTES = 64


def row_block_bytes(n_heads: int, room: int) -> int:
    """Bytes of a row block."""
    return n_heads * (CONTROL_BYTES + 8 * room)


class Rows(NamedTuple):
    """ngrams:rows: fills a row block; thread 0 does it all."""

    size: Any  # tokens that the longest ones have
    heads: Any
    heads_each: Any  # heads that stand for as many tokens as one another
    multipliers: Any  # uint64 [size]
    offsets: Any  # int64 [heads]
    rows: Any  # int64 [heads]: how many a head has
    end: Any  # the token that stands for missing ones
    state_at: Any  # bytes from the sequence's memory to int64 [size - 1]: ids plus 1, the last one first
    room: Any
    block: Any
    control: Any


TABLES["ngrams:rows"] = Rows
