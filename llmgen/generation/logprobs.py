"""Log-probabilities of the chosen token and of the most likely ones."""

from __future__ import annotations

import numpy as np

from llmgen.generation import native
from llmgen.generation.candidates import Candidates, best, log_total
from llmgen.generation.events import TokenLogprob, TokenScore


def score(c: Candidates, token: int, n_top: int) -> TokenScore:
    """The token's log-probability among the candidates (-inf if it is not one), and the n_top best."""
    if c.ids is None and (found := native.head(c.logits, n_top)) is not None:
        ids, total = found
        best_ones = tuple(TokenLogprob(int(i), float(c.logits[i]) - total) for i in ids)
        return TokenScore(token, float(c.logits[token]) - total, best_ones)
    total = log_total(c)
    place, there = c.locate(np.array([token]))
    own = float(c.logits[place[0]] - total) if there[0] else float("-inf")
    head = best(c, n_top)
    top = tuple(TokenLogprob(head.token(i), float(value - total)) for i, value in enumerate(head.logits))
    return TokenScore(token, own, top)
