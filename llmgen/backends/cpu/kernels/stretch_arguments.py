"""The arguments of the steps for summaries of stretches of tokens; see arguments.py, whose words hold here too.

A *stretch block* says which stretches end in a run (``Count``).  It begins with three control blocks, of
CONTROL_BYTES each; arrays of ``room`` int64 follow, to which these point:

    FIRST   a row for each stretch that ends; its position is that of its first token
    NUMBER  the same rows; their position is the number of the stretch
    LAST    the tokens of the run; their position is the number of the last whole stretch up to them, or -1
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llmgen.backends.cpu.kernels.arguments import TABLES

CONTROL_BYTES = 64
FIRST, NUMBER, LAST = 0, CONTROL_BYTES, 2 * CONTROL_BYTES
ARRAYS = 3 * CONTROL_BYTES


def stretch_bytes(room: int) -> int:
    """Bytes of a stretch block: the arrays are first positions, numbers, sequences of rows, and last numbers."""
    return ARRAYS + 4 * 8 * room


class Count(NamedTuple):
    """stretches:count: fills a stretch block."""

    every: Any  # tokens of a stretch
    room: Any
    block: Any
    control: Any


class Sums(NamedTuple):
    """stretches:sums: columns first..last, for all tokens; a row of out for each stretch that ends."""

    x: Any  # float32 [tokens][columns], for the token's own stretch
    x_stride: Any
    scores: Any  # as x, or 0
    scores_stride: Any
    ahead: Any  # as x, for the stretch behind it; 0: none, and stretches do not overlap
    ahead_stride: Any
    ahead_scores: Any
    ahead_scores_stride: Any
    offsets: Any  # float32 [every], rows of offset_row bytes, added to scores; or 0
    ahead_offsets: Any
    offset_row: Any
    every: Any
    state_at: Any  # bytes from the sequence's memory to the state
    state_row: Any  # bytes of a row of the state
    out: Any
    out_stride: Any
    first: Any
    last: Any
    control: Any


class Seen(NamedTuple):
    """stretches:seen: what a token sees of its contents, as ``ChooseKeys.out`` lists it."""

    window: Any
    kept: Any  # positions of the ring; summaries follow behind it
    every: Any  # 0: there are no summaries
    chosen: Any  # ChooseKeys.out, or 0 for all summaries
    chosen_stride: Any
    out: Any
    out_stride: Any
    control: Any


class Tokens(NamedTuple):
    """stretches:tokens: the tokens of chosen stretches and those behind the last whole one, as ``ChooseKeys.out``."""

    every: Any
    chosen: Any  # ChooseKeys.out
    chosen_stride: Any
    out: Any
    out_stride: Any
    control: Any


TABLES.update(
    {"stretches:count": Count, "stretches:sums": Sums, "stretches:seen": Seen, "stretches:tokens": Tokens}
)
