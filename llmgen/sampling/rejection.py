"""Rejection sampling of guessed tokens: what comes out is distributed as if nothing had been guessed.

Leviathan et al. 2023, arXiv:2211.17192, appendix A.1: a guess g that was drawn from q is accepted with
the probability min(1, p(g) / q(g)), and otherwise the token is drawn from max(0, p - q), scaled to
a sum of 1.  Both p and q are the distributions after every stage of the chain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmgen.sampling.logits import Candidates


@dataclass(frozen=True, slots=True, eq=False)
class Guess:
    """A token that may come next, and what it was drawn from; ``among`` None: the guess was certain."""

    token: int
    among: Candidates | None = None


def judge(p: Candidates, guess: Guess, u_accept: float, u_token: float) -> tuple[int, float]:
    """The token that comes next, and its probability in p.

    ``u_accept`` and ``u_token`` are uniform draws from [0, 1), independent of that of the guess.
    """
    ids = np.arange(len(p.logits)) if p.ids is None else p.ids
    mine = _probabilities(p.logits)
    theirs = _at(ids, guess)
    place = np.flatnonzero(ids == guess.token)
    if len(place) and u_accept * theirs[place[0]] < mine[place[0]]:
        return guess.token, float(mine[place[0]])
    rest = np.maximum(mine - theirs, 0.0)
    if not rest.any():  # p is q but for rounding
        rest = mine
    order = np.argsort(ids, kind="stable")
    sums = np.cumsum(rest[order])
    chosen = order[min(int(np.searchsorted(sums, u_token * sums[-1], side="right")), len(order) - 1)]
    return int(ids[chosen]), float(mine[chosen])


def _at(ids: NDArray[np.int64], guess: Guess) -> NDArray[np.float64]:
    """The probability in q of each of these tokens: float64 [n]."""
    if guess.among is None:
        return (ids == guess.token).astype(np.float64)
    q = _probabilities(guess.among.logits)
    if guess.among.ids is None:
        known = ids < len(q)
        return np.where(known, q[np.where(known, ids, 0)], 0.0)
    order = np.argsort(guess.among.ids)
    theirs = guess.among.ids[order]
    found = np.minimum(np.searchsorted(theirs, ids), len(theirs) - 1)
    return np.where(theirs[found] == ids, q[order][found], 0.0)


def _probabilities(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Softmax of float32 [n]."""
    weights = np.exp(logits.astype(np.float64) - float(logits.max()))
    return np.asarray(weights / weights.sum())
