"""Where a routing block has what; plain numbers, no imports.

A routing block says which experts the tokens of a run have chosen.  A *pair* is a token and
one of its experts.  The pairs are sorted by expert and become the *rows* of what the experts
compute; the rows of one expert lie together and start at a multiple of a unit.  int64:

    rows | active experts | addresses of two tables: the row of each pair [tokens][n_used], and the
    token of each row | records, one for each active expert in ascending order | the tables

A routing block and a record both begin with a number of rows, as a control block does with
its tokens (layout.FIELDS).  So kernels that take tokens take rows as well.
"""

from __future__ import annotations

ROW_UNIT = 16
"""Rows of an expert start at a multiple of so many in a prompt's program: whole pairs of tiles."""

ACTIVE = 8
"""Where the number of active experts stands."""
PAIR_ROWS, ROW_TOKENS = 16, 24
"""Where the addresses of the tables stand."""
RECORDS = 64
"""Where the records begin."""
RECORD_BYTES = 32
"""A record: how many rows, of which expert, the first of them."""
RECORD_EXPERT, RECORD_FIRST = 8, 16

NO_TOKEN = -1
"""The token of a row that only fills up a unit."""


def next_rows_at(n_experts: int) -> int:
    """Bytes before the places of the experts' next rows, which the sorting needs for itself."""
    return RECORDS + RECORD_BYTES * n_experts


def pair_rows_at(n_experts: int) -> int:
    """Bytes before the rows of the pairs."""
    return next_rows_at(n_experts) + 8 * n_experts


def row_tokens_at(n_experts: int, n_pairs: int) -> int:
    """Bytes before the tokens of the rows; n_pairs: the most there can be."""
    return pair_rows_at(n_experts) + 8 * n_pairs


def most_rows(n_experts: int, n_pairs: int, unit: int) -> int:
    """The most rows that n_pairs can become."""
    return (n_pairs + min(n_experts, n_pairs) * (unit - 1)) // unit * unit


def routing_bytes(n_experts: int, n_pairs: int, unit: int) -> int:
    """Size of a routing block."""
    return row_tokens_at(n_experts, n_pairs) + 8 * most_rows(n_experts, n_pairs, unit)
