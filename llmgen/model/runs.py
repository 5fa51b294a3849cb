"""The parts of a run, as the engine gives them to a backend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from typing import Any, Literal, NamedTuple

import numpy as np

from llmgen.errors import UsageError, kind_of, shown

Role = Literal["generated", "guess", "prompt"]
"""What the tokens of a run are; it decides how they are computed.

Generated: a few tokens, of one sequence or several.  Prompt: many, computed for throughput.
The same token may differ in the last bits between these two, and in nothing else.
Guess: as generated, by a draft model, whose logits may be those of the first ``GUESSABLE`` tokens only.
"""

GUESSABLE = 1 << 16
"""Tokens among which a draft model may choose its guesses.

The output matrix of a small model with a large vocabulary is a good part of what it reads for a token (37% of Qwen2.5
0.5B).  In vocabularies that grew by merging, the most frequent tokens come first, so the rest of the matrix is
seldom needed (Zhao et al. 2025, arXiv:2502.14856, who choose the tokens by counting).
"""


MAX_PARTS = 8
"""Sequences that one run may take: as many as a kernel for generated tokens has columns."""


class Part(NamedTuple):
    """What one run does for one sequence."""

    seq: Any
    """The backend's sequence."""
    ids: Sequence[int] | np.ndarray
    """The tokens to append."""
    n_logits: int = 1
    """For how many of them, at the end, logits are wanted."""


def token_ids(ids: Iterable[Any], vocab_size: int) -> np.ndarray:
    """Token ids as int64 [n], n >= 1.  Raises UsageError for anything else and for ids outside the vocabulary."""
    if type(ids) is list and len(ids) == 1 and type(ids[0]) is int and 0 <= ids[0] < vocab_size:
        return np.array(ids, np.int64)  # a generated token, between two of which there is little time
    if isinstance(ids, (bytes, bytearray)):
        raise UsageError("a prompt must be a text or token ids, not bytes: decode them to a text first")
    if getattr(ids, "ndim", 1) != 1:
        shape = tuple(getattr(ids, "shape", ()))
        raise UsageError(
            f"a prompt must be a text or a row of token ids, not an array of shape {shape}: give one row"
        )
    if not isinstance(ids, Iterable):
        raise _not_ids(ids)
    numbers = [_whole(i) for i in ids]
    if not numbers:
        raise UsageError("the prompt has no tokens, and at least one is needed: give some text")
    for token in (min(numbers), max(numbers)):
        if not 0 <= token < vocab_size:
            raise UsageError(
                f"the prompt has token {shown(token)}, but this model's tokens go from 0 to {vocab_size - 1}"
            )
    return np.array(numbers, np.int64)


def _whole(token: Any) -> int:
    try:
        return index(token)
    except TypeError:
        raise _not_ids(token) from None


def _not_ids(found: Any) -> UsageError:
    return UsageError(
        f"a prompt must be a text or a list of token ids, which are whole numbers, not {kind_of(found)}"
    )
