"""Log-probabilities of the chosen token and of the most likely ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgen.generation.candidates import Candidates, best
from llmgen.generation.events import TokenLogprob, TokenScore


def log_softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    """l_i - ln sum_j exp(l_j): float [n] -> float64 [n].  Some logit must be finite, none NaN or +inf."""
    shifted = logits - logits.max()
    return shifted.astype(np.float64) - np.log(np.exp(shifted).sum(dtype=np.float64))


def score(c: Candidates, token: int, n_top: int) -> TokenScore:
    """The token's log-probability among the candidates (-inf if it is not one), and the n_top best."""
    normalizer = c.logits.max() + np.log(np.exp(c.logits - c.logits.max()).sum(dtype=np.float64))
    place, there = c.locate(np.array([token]))
    own = float(c.logits[place[0]] - normalizer) if there[0] else float("-inf")
    head = best(c, n_top)
    top = tuple(TokenLogprob(head.token(i), float(value - normalizer)) for i, value in enumerate(head.logits))
    return TokenScore(token, own, top)
