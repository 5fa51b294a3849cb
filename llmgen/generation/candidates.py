"""The tokens that are still in the running, and the few operations on them.

Every sampler takes :class:`Candidates` and returns fewer or changed ones.  The
vocabulary is never sorted: the best few are found through the maxima of column
groups, which numpy computes at memory speed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_GROUP_SIZES = (32, 8)
_SMALL = 4096
_BLOCK = 512


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
    return candidates.take(best_indices(candidates.logits, k, candidates.ids), ordered=True)


def largest(candidates: Candidates, k: int) -> Candidates:
    """The same k candidates as :func:`best`, but in whatever order is cheapest: right for a large k."""
    n = len(candidates)
    if k >= n:
        return candidates
    if candidates.ordered or k < _SMALL:
        return best(candidates, k)
    if candidates.ids is not None:
        candidates = candidates.take(np.argsort(candidates.ids, kind="stable"))
    bound = np.partition(candidates.logits, n - k)[n - k]
    above, equal = candidates.logits > bound, np.flatnonzero(candidates.logits == bound)
    above[equal[: k - int(np.count_nonzero(above))]] = True
    return candidates.keep(above)


def best_indices(logits: NDArray[Any], k: int, ids: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """Indices of the k largest of float [n], falling; ties by token id (else by index): int64 [<= k].

    The k-th largest of the group maxima bounds the k-th largest value from
    below, so only groups that reach it need to be looked at.
    """
    if k <= 0:
        return np.zeros(0, dtype=np.int64)
    group = next((g for g in _GROUP_SIZES if len(logits) // g >= 2 * k), 0)
    if not group:
        return _falling(logits, ids)[:k]
    index = _reaching(logits, k, group)
    return index[_falling(logits[index], None if ids is None else ids[index])[:k]]


def fewest(
    score: NDArray[Any], w: NDArray[Any], mass: float, ids: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Indices by falling score, at least as many as it takes for their weights to sum to ``mass``.

    ``score`` and ``w`` are float [n]; ties go to the lower id.  Also returns the
    cumulative weights: int64 [m], float64 [m].  The vocabulary is sorted only
    where the best thousands do not suffice.
    """
    k = 128
    while True:
        index = best_indices(score, min(k, len(score)), ids)
        cumulative = w[index].cumsum(dtype=np.float64)
        if k >= len(score) or cumulative[-1] > mass:
            return index, cumulative
        k = k * 16 if k < _SMALL else len(score)


def _reaching(logits: NDArray[Any], k: int, group: int) -> NDArray[np.int64]:
    """Ascending indices among which are the k largest of float [n], and few others: int64 [>= k]."""
    columns = len(logits) // group
    body = logits[: columns * group].reshape(group, columns)
    maxima = body.max(axis=0)
    bound = np.partition(maxima, columns - k)[columns - k]
    hot = (maxima >= bound).nonzero()[0]
    row, place = np.divmod((body.take(hot, axis=1) >= bound).ravel().nonzero()[0], len(hot))
    tail = np.arange(columns * group, len(logits))
    return np.concatenate((row * columns + hot[place], tail))


def _falling(values: NDArray[Any], ids: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """The order that makes float [n] fall, ties by rising id (None: by position): int64 [n].

    Many float32 values: their bits are turned into integers that sort the same
    way and joined with the position.  One integer sort, which numpy vectorizes,
    then does it all.
    """
    if len(values) < _BLOCK or values.dtype != np.float32:
        return np.lexsort((np.arange(len(values)) if ids is None else ids, -values))
    by_id = None if ids is None else np.argsort(ids, kind="stable")
    by_position = values if by_id is None else values[by_id]
    bits = (by_position + np.float32(0)).view(np.uint32)  # + 0 makes -0.0 equal to 0.0
    keys = np.where(bits >> 31, bits, ~(bits | np.uint32(0x80000000))).astype(np.uint64)
    keys = (keys << np.uint64(32)) | np.arange(len(values), dtype=np.uint64)
    keys.sort()
    position = (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)
    return position if by_id is None else by_id[position]


def weights(logits: NDArray[Any]) -> NDArray[Any]:
    """exp(logits - max): float [n] -> probabilities up to a common factor, float [n].

    In float64 for up to a few thousand candidates, float32 above.  At least one
    logit must be finite, and none may be NaN or +inf.
    """
    shifted = logits - logits.max()
    if len(shifted) <= _SMALL:
        shifted = shifted.astype(np.float64)
    return np.asarray(np.exp(shifted, out=shifted))


def log_total(logits: NDArray[Any]) -> float:
    """ln sum_i exp(l_i) of float [n]: what to take off a logit to get the log-probability."""
    return float(logits.max()) + math.log(weights(logits).sum(dtype=np.float64))


def softmax(logits: NDArray[Any]) -> NDArray[Any]:
    """exp(l_i) / sum_j exp(l_j): float [n] -> probabilities float [n]."""
    w = weights(logits)
    return np.asarray(w / w.sum(dtype=np.float64).astype(w.dtype))


def entropy(p: NDArray[Any]) -> float:
    """-sum p ln p in nats, for probabilities float [n]; 0 ln 0 is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = p * np.log(p)
    return float(-np.nansum(terms, dtype=np.float64))


def pick(w: NDArray[Any], u: float) -> int:
    """Draw an index with probability w_i / sum w, from a uniform u in [0, 1).

    ``w`` is float [n], not negative.  The result is the first index whose
    cumulative weight exceeds u times the sum, so never one of weight 0.  Long
    arrays are summed in blocks first, and only one block is looked into.
    """
    if len(w) <= _SMALL:
        return _first_over(w.cumsum(dtype=np.float64), u)
    sums = np.add.reduceat(w, np.arange(0, len(w), _BLOCK), dtype=np.float64)
    cumulative = sums.cumsum()
    block = _first_over(cumulative, u)
    before = float(cumulative[block - 1]) if block else 0.0
    inside = w[block * _BLOCK : (block + 1) * _BLOCK].cumsum(dtype=np.float64)
    share = (u * float(cumulative[-1]) - before) / float(inside[-1])
    return block * _BLOCK + _first_over(inside, min(max(share, 0.0), 1.0))


def _first_over(cumulative: NDArray[np.float64], u: float) -> int:
    """The first index over u times the last value; rounding may not carry it past the last step."""
    index = cumulative.searchsorted(u * cumulative[-1], side="right")
    return int(index if index < len(cumulative) else cumulative.searchsorted(cumulative[-1]))
