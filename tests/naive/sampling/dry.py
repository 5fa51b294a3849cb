"""DRY ("don't repeat yourself"): an exponential penalty on continuing a repetition.

Source: p-e-w's proposal for text-generation-webui (2024) and llama.cpp's sampler
of that name.  Where the text ends with ``length`` tokens that were there before,
the token that followed then loses multiplier * base ** (length - allowed).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from llmgen.sampling.breakers import Breakers
from naive.sampling.candidates import Candidates
from naive.sampling.penalties import add_bias

_LARGEST_EXPONENT = 88.7  # exp of it is about the largest float32


def repeat_lengths(history: NDArray[np.int64], least: int, limit: int) -> dict[int, int]:
    """The tokens that would continue a repetition, and its length.

    For each earlier place whose tokens equal the end of ``history`` (int64 [n]),
    the token after it and the number of equal tokens, from ``least`` (1 or more)
    to ``limit``; for a token found more than once, the longest.
    """
    n = len(history)
    if n < 2 or limit < least:
        return {}
    found: dict[int, int] = {}
    ends = (history[:-1] == history[-1]).nonzero()[0]
    for length in range(1, min(limit, n) + 1):
        if length >= least:
            found.update(dict.fromkeys(history[ends + 1].tolist(), length))
        ends = ends[ends >= length]
        ends = ends[history[ends - length] == history[n - 1 - length]] if length < n else ends[:0]
        if not len(ends):
            break
    return found


def longest_counted(base: float, allowed_length: int) -> int | None:
    """The length over which float32 would overflow, so that longer matches need not be counted; None without one."""
    return allowed_length + int(_LARGEST_EXPONENT / math.log(base)) if base > 1.000001 else None


def dry(
    c: Candidates,
    history: NDArray[np.int64],
    breakers: Breakers | None,
    multiplier: float,
    base: float,
    allowed_length: int,
) -> Candidates:
    """Penalize the tokens that would continue a repetition of at least ``allowed_length``.

    ``history`` is the window, int64 [n]; what is negative in it is never penalized.
    """
    limit = min(len(history), breakers.since if breakers else len(history))
    if (cap := longest_counted(base, allowed_length)) is not None:
        limit = min(limit, cap)
    if multiplier <= 0 or limit < allowed_length:
        return c
    found = repeat_lengths(history, allowed_length, limit)
    found = {token: length for token, length in found.items() if token >= 0}
    if breakers:
        found = {token: length for token, length in found.items() if not breakers.inside(token)}
    penalty = [min(multiplier * base ** (length - allowed_length), 1e38) for length in found.values()]
    return add_bias(c, np.array(list(found), dtype=np.int64), -np.array(penalty))
