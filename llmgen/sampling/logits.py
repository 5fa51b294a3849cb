"""A row of logits: the most likely tokens, log-probabilities, and whether its numbers can be used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgen.backends.cpu import sampling as kernels
from llmgen.sampling.scores import TokenLogprob, TokenScore


@dataclass(frozen=True, slots=True)
class Candidates:
    """The remaining tokens, int64 [n], or None for the whole vocabulary; and their logits, float32 [n]."""

    ids: NDArray[np.int64] | None
    logits: NDArray[np.float32]

    def token(self, index: int) -> int:
        """The token id at an index."""
        return int(index if self.ids is None else self.ids[index])

    def best(self, k: int) -> list[TokenLogprob]:
        """The k most likely with their log-probabilities, of equal ones the lower id first."""
        return self._best(k)[0]

    def score(self, token: int, n_top: int) -> TokenScore:
        """The log-probability of a token (-inf if it is no candidate), and the ``n_top`` best."""
        top, total = self._best(n_top)
        if self.ids is None:
            return TokenScore(token, float(self.logits[token]) - total, tuple(top))
        place = np.flatnonzero(self.ids == token)
        own = float(self.logits[place[0]]) - total if len(place) else -np.inf
        return TokenScore(token, own, tuple(top))

    def _best(self, k: int) -> tuple[list[TokenLogprob], float]:
        index, total = kernels.head(self.logits, k)
        ids = index if self.ids is None else self.ids[index]
        pairs = zip(ids.tolist(), self.logits[index].tolist(), strict=True)
        return [TokenLogprob(token, logit - total) for token, logit in pairs], total


def log_total(logits: NDArray[np.float32]) -> float:
    """ln sum_i exp(l_i) of float32 [n]: what to subtract from a logit to get the log-probability."""
    return kernels.head(logits, 0)[1]


def check_finite(logits: NDArray[Any]) -> None:
    """Raises an LLMGenError if a model's logits, of any shape, are not all finite."""
    if not np.isfinite(logits).all():
        raise kernels.broken_logits(bool(np.isnan(logits).any()))
