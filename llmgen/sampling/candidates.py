"""The tokens that are still in the running, and the few operations on them.

Every sampler takes :class:`Candidates` and returns fewer or changed ones.  The
vocabulary is never sorted: the best few are found through the maxima of column
groups, which numpy computes at memory speed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgen.backends.cpu.kernels.layout import SAMPLING_BLOCK, SAMPLING_LANES
from llmgen.errors import LLMGenError
from llmgen.sampling import native

_GROUP_SIZES = (32, 8)
_SMALL = 4096
_SORT_AS_INTEGERS = 512
_IN_GROUP = np.arange(0, SAMPLING_BLOCK, SAMPLING_LANES)
_BORDERS = (3.0, 6.0, 9.0, 12.0, 16.0, 20.0)


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
    _known: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def maxima(self) -> NDArray[np.float32] | None:
        """The largest of every 16th logit of each block of 512, where the kernels find them."""
        if "maxima" not in self._known:
            self._known["maxima"] = native.maxima(self.logits)
        found: NDArray[np.float32] | None = self._known["maxima"]
        return found

    @property
    def peak(self) -> float:
        """The largest logit; NaN where one is NaN."""
        if "peak" not in self._known:
            maxima = self.maxima
            self._known["peak"] = float(self.logits.max() if maxima is None else maxima.max())
        return float(self._known["peak"])

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
        return self.take(reaching(self.logits, bound, self.maxima), self.ordered)

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
    return candidates.take(
        best_indices(candidates.logits, k, candidates.ids, candidates.maxima), ordered=True
    )


def largest(candidates: Candidates, k: int) -> Candidates:
    """The same k candidates as :func:`best`, but by rising token id: right for a large k."""
    n = len(candidates)
    if k >= n:
        return candidates
    if candidates.ordered or k < _SMALL:
        chosen = best(candidates, k)
        return chosen if chosen.ids is None else chosen.take(np.argsort(chosen.ids))
    if candidates.ids is not None:
        candidates = candidates.take(np.argsort(candidates.ids, kind="stable"))
    bound = np.partition(candidates.logits, n - k)[n - k]
    above, equal = candidates.logits > bound, np.flatnonzero(candidates.logits == bound)
    above[equal[: k - int(np.count_nonzero(above))]] = True
    return candidates.keep(above)


def best_indices(
    logits: NDArray[Any],
    k: int,
    ids: NDArray[np.int64] | None = None,
    maxima: NDArray[np.float32] | None = None,
) -> NDArray[np.int64]:
    """Indices of the k largest of float [n], falling; ties by token id (else by index): int64 [<= k].

    The k-th largest of the group maxima bounds the k-th largest value from
    below, so only groups that reach it need to be looked at.  ``maxima`` are
    those of ``Candidates.maxima``, where they are known.
    """
    if k <= 0:
        return np.zeros(0, dtype=np.int64)
    if maxima is not None and len(maxima) >= 2 * k:
        index = reaching(logits, np.partition(maxima, len(maxima) - k)[len(maxima) - k], maxima)
    elif group := next((g for g in _GROUP_SIZES if len(logits) // g >= 2 * k), 0):
        index = _reaching(logits, k, group)
    else:
        return _falling(logits, ids)[:k]
    return index[_falling(logits[index], None if ids is None else ids[index])[:k]]


def fewest(
    score: NDArray[Any],
    top: float,
    w: Weights,
    mass: float,
    ids: NDArray[np.int64] | None = None,
    maxima: NDArray[np.float32] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Indices by falling score, at least as many as it takes for their weights to sum to ``mass``.

    ``score`` is float [n], none of it over ``top``; ties go to the lower id.
    Also returns the cumulative weights: int64 [m], float64 [m].  Scores are
    taken down to a border that moves on until the mass is reached, and only
    what is over it is sorted.  ``maxima`` are those of the scores.
    """
    for distance in _BORDERS:
        index = reaching(score, top - distance, maxima)
        if len(index) == len(score):
            break
        if w.at(index).sum() > mass:
            index = index[_falling(score[index], None if ids is None else ids[index])]
            return index, w.at(index).cumsum()
    index = _falling(score, ids)
    return index, w.at(index).cumsum()


def reaching(values: NDArray[Any], bound: float, maxima: NDArray[np.float32] | None) -> NDArray[np.int64]:
    """Ascending indices of the values of at least ``bound``; ``maxima`` as in ``Candidates.maxima``."""
    hot = None if maxima is None else (maxima >= bound).nonzero()[0]
    if maxima is None or hot is None or 8 * len(hot) > len(maxima):
        return np.flatnonzero(values >= bound)
    first = hot // SAMPLING_LANES * SAMPLING_BLOCK + hot % SAMPLING_LANES
    index = np.add.outer(first, _IN_GROUP).ravel()
    if len(values) % SAMPLING_BLOCK:
        index = index[index < len(values)]
    index = index[values[index] >= bound]
    index.sort()
    return index


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
    if len(values) < _SORT_AS_INTEGERS or values.dtype != np.float32:
        return np.lexsort((np.arange(len(values)) if ids is None else ids, -values))
    by_id = None if ids is None else np.argsort(ids, kind="stable")
    by_position = values if by_id is None else values[by_id]
    bits = (by_position + np.float32(0)).view(np.uint32)  # + 0 makes -0.0 equal to 0.0
    keys = np.where(bits >> 31, bits, ~(bits | np.uint32(0x80000000))).astype(np.uint64)
    keys = (keys << np.uint64(32)) | np.arange(len(values), dtype=np.uint64)
    keys.sort()
    position = (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)
    return position if by_id is None else by_id[position]


class Weights:
    """w_i = exp(l_i - max l), what a probability is up to a common factor, of candidates [n].

    At least one logit must be finite, and none may be NaN or +inf.  Of a whole
    vocabulary only sums over blocks are computed, in float32; single weights are
    computed in float64 when they are asked for.
    """

    def __init__(self, c: Candidates) -> None:
        self._logits = c.logits
        self._peak = c.peak
        self._all: NDArray[np.float64] | None = None
        self._blocks = native.exp_sums(c.logits, c.peak)
        if self._blocks is None:
            self._all = self.at(slice(None))
        sums: NDArray[Any] | None = self._all if self._blocks is None else self._blocks
        assert sums is not None
        #: the sum of all weights
        self.total = float(sums.sum(dtype=np.float64))

    def at(self, index: Any) -> NDArray[np.float64]:
        """The weights at an index, a slice or an array of indices: float64."""
        if self._all is not None:
            return np.asarray(self._all[index])
        shifted = self._logits[index].astype(np.float64) - self._peak
        return np.asarray(np.exp(shifted))

    def pick(self, u: float) -> int:
        """Draw an index with probability w_i / total, from a uniform u in [0, 1).

        The result is the first index whose cumulative weight exceeds u times the
        total, so never one of weight 0.  Only one block is looked into.
        """
        if self._blocks is None:
            return _first_over(self.at(slice(None)).cumsum(), u)
        cumulative = self._blocks.cumsum(dtype=np.float64)
        block = _first_over(cumulative, u)
        first = block * SAMPLING_BLOCK
        inside = self.at(slice(first, first + SAMPLING_BLOCK)).cumsum()
        if not inside[-1] > 0:  # u is 0, and a block's sum of impossible tokens is not quite 0
            return int(self._logits.argmax())
        before = float(cumulative[block - 1]) if block else 0.0
        share = (u * float(cumulative[-1]) - before) / float(inside[-1])
        return first + _first_over(inside, min(max(share, 0.0), 1.0))


def check_finite(logits: NDArray[np.float32]) -> None:
    """Raises :class:`LLMGenError` where a model's logits, of any shape, are not all finite."""
    if not np.isfinite(logits).all():
        raise broken_logits(bool(np.isnan(logits).any()))


def broken_logits(are_nan: bool) -> LLMGenError:
    """What to say of logits that are NaN or infinite."""
    found = "not numbers (NaN)" if are_nan else "infinite"
    return LLMGenError(
        f"the model's logits are {found}, where finite ones were expected: the file may be damaged,"
        " or its values may be too large for this key-value cache type (--kv-type f32 has more room)"
    )


def log_total(c: Candidates) -> float:
    """ln sum_i exp(l_i): what to take off a logit to get the log-probability."""
    return c.peak + math.log(Weights(c).total)


def total_and_entropy(c: Candidates) -> tuple[float, float]:
    """ln sum_i exp(l_i), and the entropy -sum p ln p in nats, where 0 ln 0 is 0."""
    found = native.exp_dots(c.logits, c.peak)
    if found is None:
        distance = np.maximum(c.logits.astype(np.float64) - c.peak, -745.0)
        w = np.exp(distance)
        found = float(w.sum()), float((w * distance).sum())
    total, dot = found
    return c.peak + math.log(total), max(0.0, math.log(total) - dot / total)


def softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    """exp(l_i) / sum_j exp(l_j): float [n] -> all probabilities, float64 [n]; for few candidates."""
    w = Weights(Candidates(None, logits))
    return np.asarray(w.at(slice(None)) / w.total)


def _first_over(cumulative: NDArray[np.float64], u: float) -> int:
    """The first index over u times the last value; rounding may not carry it past the last step."""
    index = cumulative.searchsorted(u * cumulative[-1], side="right")
    return int(index if index < len(cumulative) else cumulative.searchsorted(cumulative[-1]))
