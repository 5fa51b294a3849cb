"""The tokens that are still in the running, and the few operations on them.

Every sampler takes :class:`Candidates` and returns fewer or changed ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens and their logits.

    ``ids`` is int64 [n], ascending unless ``ordered``, or None for the whole
    vocabulary (token id = index).  ``logits`` is float [n].  ``ordered`` says
    that the logits fall from first to last, equal ones by rising token id.
    """

    ids: NDArray[np.int64] | None
    logits: NDArray[Any]
    ordered: bool = False

    @property
    def peak(self) -> float:
        """The largest logit; NaN where one is NaN."""
        return float(self.logits.max())

    def __len__(self) -> int:
        return len(self.logits)

    def token(self, index: int) -> int:
        """The token id at an index."""
        return int(index if self.ids is None else self.ids[index])

    def take(self, index: NDArray[np.int64], ordered: bool = False) -> Candidates:
        """The candidates at some indices."""
        return Candidates(index if self.ids is None else self.ids[index], self.logits[index], ordered)

    def head(self, n: int) -> Candidates:
        """The first n of ordered candidates."""
        return Candidates(None if self.ids is None else self.ids[:n], self.logits[:n], self.ordered)

    def keep(self, mask: NDArray[np.bool_]) -> Candidates:
        """The candidates where the mask is true, in the same order."""
        return self.take(np.flatnonzero(mask), self.ordered)

    def over(self, bound: float) -> Candidates:
        """Those with a logit of at least ``bound``, in the same order."""
        return self.take(np.flatnonzero(self.logits >= bound), self.ordered)

    def replace(self, logits: NDArray[Any], ordered: bool = False) -> Candidates:
        """The same tokens with other logits."""
        return Candidates(self.ids, logits, ordered)

    def locate(self, tokens: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Where each token stands (int64 [m]), and whether it is there at all (bool [m])."""
        if self.ids is None:
            return tokens, (tokens >= 0) & (tokens < len(self))
        if not len(self):
            return np.zeros_like(tokens), np.zeros(len(tokens), dtype=bool)
        sorter = np.argsort(self.ids)
        slot = np.minimum(np.searchsorted(self.ids, tokens, sorter=sorter), len(self) - 1)
        place = sorter[slot]
        return place, self.ids[place] == tokens


def order(candidates: Candidates) -> Candidates:
    """All candidates, the most likely first; ties by token id."""
    return best(candidates, len(candidates))


def best(candidates: Candidates, k: int) -> Candidates:
    """The k most likely candidates in order; ties at the border go to the lower token id."""
    if candidates.ordered:
        return candidates.head(k)
    return candidates.take(_falling(candidates.logits, candidates.ids)[: max(0, k)], ordered=True)


def largest(candidates: Candidates, k: int) -> Candidates:
    """The same k candidates by rising token id."""
    if k >= len(candidates):
        return candidates
    chosen = best(candidates, k)
    return chosen if chosen.ids is None else chosen.take(np.argsort(chosen.ids))


def fewest(
    score: NDArray[Any], w: Weights, ids: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Indices by falling score, float [n], ties by rising id; and their cumulative weights: int64, float64 [n]."""
    index = _falling(score, ids)
    return index, w.at(index).cumsum()


def _falling(values: NDArray[Any], ids: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """The order that makes float [n] fall, ties by rising id (None: by position): int64 [n]."""
    return np.lexsort((np.arange(len(values)) if ids is None else ids, -values))


class Weights:
    """w_i = exp(l_i - max l), what a probability is up to a common factor, of candidates [n].

    At least one logit must be finite, and none may be NaN or +inf.
    """

    def __init__(self, c: Candidates) -> None:
        self._all: NDArray[np.float64] = np.exp(c.logits.astype(np.float64) - c.peak)
        self.total = float(self._all.sum())

    def at(self, index: Any) -> NDArray[np.float64]:
        """The weights at an index, a slice or an array of indices: float64."""
        return np.asarray(self._all[index])

    def pick(self, u: float) -> int:
        """Draw an index with probability w_i / total, from a uniform u in [0, 1).

        The result is the first index whose cumulative weight exceeds u times the
        total, so never one of weight 0.
        """
        cumulative = self._all.cumsum()
        index = cumulative.searchsorted(u * cumulative[-1], side="right")
        # rounding may not carry it past the last step
        return int(index if index < len(cumulative) else cumulative.searchsorted(cumulative[-1]))


def log_total(c: Candidates) -> float:
    """ln sum_i exp(l_i): what to take off a logit to get the log-probability."""
    return c.peak + math.log(Weights(c).total)


def total_and_entropy(c: Candidates) -> tuple[float, float]:
    """ln sum_i exp(l_i), and the entropy -sum p ln p in nats, where 0 ln 0 is 0."""
    distance = np.maximum(c.logits.astype(np.float64) - c.peak, -745.0)
    w = np.exp(distance)
    total, dot = float(w.sum()), float((w * distance).sum())
    return c.peak + math.log(total), max(0.0, math.log(total) - dot / total)


def softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    """exp(l_i) / sum_j exp(l_j): float [n] -> all probabilities, float64 [n]; for few candidates."""
    w = Weights(Candidates(None, logits))
    return np.asarray(w.at(slice(None)) / w.total)
