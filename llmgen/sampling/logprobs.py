"""Log-probabilities of the chosen token and of the most likely ones."""

from __future__ import annotations

import numpy as np

from llmgen.sampling import native
from llmgen.sampling.candidates import Candidates, best, log_total
from llmgen.sampling.scores import TokenLogprob, TokenScore


def score(c: Candidates, token: int, n_top: int) -> TokenScore:
    """The token's log-probability among the candidates (-inf if it is not one), and the n_top best."""
    if (found := native.head(c.logits, n_top)) is not None:
        index, total = found
        head = c.take(index)
    else:
        total, head = log_total(c), best(c, n_top)
    ids = range(len(head)) if head.ids is None else head.ids.tolist()
    top = tuple(TokenLogprob(i, value - total) for i, value in zip(ids, head.logits.tolist(), strict=True))
    if c.ids is None:
        return TokenScore(token, float(c.logits[token]) - total, top)
    place, there = c.locate(np.array([token]))
    return TokenScore(token, float(c.logits[place[0]]) - total if there[0] else float("-inf"), top)
