"""How the attention of generated tokens may be planned: what Python tells the kernel for each run.

Three words behind the fields of the control block.  Neither ``together`` nor ``streams`` nor the threads change a
bit; a local window is another attention.  Nothing here imports numba: the planner reads it in every process.
"""

from __future__ import annotations

from llmgen.backends.cpu.kernels.kv import SCORE_BYTES, line_bytes, most_query_bytes
from llmgen.backends.cpu.kernels.layout import FIELDS, MAX_COLUMNS, row_state_bytes

UNBOUNDED = 1 << 40
"""The window of a layer without one."""
CONTROL_WORDS = len(FIELDS) + 3
"""Words of the control block with the plan."""
TOGETHER, LOCAL, STREAMS = (8 * (len(FIELDS) + i) for i in range(3))
"""Where the plan stands in the control block: the most tokens of a sequence that attend together, so that
a key block is read once for them; and of how many keys a token sees the last, besides the first KEY_BLOCK, or 0
for all, where a layer with a window of its own keeps that; and log2 of the streams in which the next key block is
asked for (kv/asking.py)."""
MERGED = 24
"""Where the state of a row says up to which block, exclusive, it holds the merged states; 0: its own block's only."""
MOST_ROWS = 96
"""Rows of attention that are kept side by side in a thread's scratch, about."""


def most_together(group: int) -> int:
    """Generated tokens that may attend together at most; group: query heads of a kv head."""
    return max(1, min(MAX_COLUMNS, MOST_ROWS // group))


def blocks_scratch(group: int, key_dim: int, value_dim: int) -> int:
    """Bytes that a thread needs: scores, queries, and two states of each row."""
    rows = most_together(group) * group
    return SCORE_BYTES + line_bytes(rows * most_query_bytes(key_dim)) + rows * 2 * row_state_bytes(value_dim)
