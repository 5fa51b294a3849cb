"""Samplers that change single logits: bias, bans, and penalties for repetition."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from naive.sampling.candidates import Candidates

_NO_TOKENS = np.zeros(0, dtype=np.int64)


def add_bias(c: Candidates, tokens: NDArray[np.int64], bias: NDArray[np.float64]) -> Candidates:
    """Add bias [m] to the logits of distinct tokens [m]; -inf bans, whatever the logit was."""
    if not len(tokens):
        return c
    place, there = c.locate(tokens)
    place, bias = place[there], bias[there]
    logits = c.logits.copy()
    with np.errstate(invalid="ignore"):
        logits[place] = np.where(np.isneginf(bias), -np.inf, logits[place] + bias)
    return c.replace(logits)


def window(history: NDArray[np.int64], last_n: int) -> NDArray[np.int64]:
    """The last n tokens of int64 [n_history]; all of them for -1."""
    if last_n < 0:
        return history
    return history[max(0, len(history) - last_n) :] if last_n else _NO_TOKENS


def repetition(
    c: Candidates, recent: NDArray[np.int64], repeat: float, frequency: float, presence: float
) -> Candidates:
    """Lower the logits of tokens in the window ``recent`` (int64 [n]).

    A token that is there ``count`` times: a positive logit is divided by
    ``repeat``, another multiplied by it (Keskar et al. 2019, CTRL, with the sign
    rule of Hugging Face and llama.cpp); then count * frequency + presence is
    taken off (OpenAI API).
    """
    if not len(recent) or (repeat == 1 and frequency == 0 and presence == 0):
        return c
    count = Counter(recent.tolist())
    place, there = c.locate(np.fromiter(count, np.int64, len(count)))
    counts = np.fromiter(count.values(), np.float64, len(count))
    place, counts = place[there], counts[there]
    logits = c.logits.copy()
    seen = logits[place].astype(np.float64)
    seen = np.where(seen > 0, seen / repeat, seen * repeat)
    logits[place] = seen - (counts * frequency + presence)
    return c.replace(logits)
