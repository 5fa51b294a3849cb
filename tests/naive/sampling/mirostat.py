"""Mirostat (Basu et al. 2020, arXiv:2007.14966): hold the surprise near a target.

``mu`` is the largest surprise allowed, in bits; after each token it moves by
eta * (tau - observed surprise).  It starts at 2 * tau.  As in llama.cpp, and
unlike the paper, the surprise is that under the distribution after the cut.
"""

from __future__ import annotations

import math

import numpy as np

from naive.sampling.candidates import Candidates, Weights, best, largest, log_total

_ESTIMATE_FROM = 100


def cut_v1(c: Candidates, mu: float, n_vocab: int) -> Candidates:
    """Version 1: estimate Zipf's exponent s from the best 100, and from it how many to keep.

    s = sum t_i b_i / sum t_i^2 with t_i = ln((i+2)/(i+1)), b_i = ln(p_i/p_(i+1));
    e = s - 1; k = (e 2^mu / (1 - N^-e))^(1/s), at least 1.
    """
    head = best(c, _ESTIMATE_FROM)
    logits = head.logits[np.isfinite(head.logits)].astype(np.float64)
    if len(logits) < 2:
        return head.head(1)
    i = np.arange(len(logits) - 1)
    t = np.log((i + 2) / (i + 1))
    s = float((t * -np.diff(logits)).sum() / (t * t).sum())
    return largest(c, _keep_count(s, mu, n_vocab))


def _keep_count(s: float, mu: float, n_vocab: int) -> int:
    """The formula for k above; the limit at e -> 0 is 2^mu / ln N, and s -> 0 keeps everything."""
    if s < 1e-3:
        return n_vocab
    e = s - 1
    factor = e / (1 - n_vocab**-e) if abs(e) > 1e-6 else 1 / math.log(n_vocab)
    exponent = (mu * math.log(2) + math.log(factor)) / s
    return max(1, int(math.exp(exponent))) if exponent < math.log(n_vocab) else n_vocab


def cut_v2(c: Candidates, mu: float) -> Candidates:
    """Version 2: keep those with a surprise -log2 p of at most mu, and at least the best."""
    kept = c.over(log_total(c) - mu * math.log(2))
    return kept if len(kept) else best(c, 1)


def surprise(w: Weights, index: int) -> float:
    """-log2 of the probability at an index."""
    return -math.log2(max(float(w.at(index)) / w.total, 1e-300))


def update(mu: float, observed: float, tau: float, eta: float) -> float:
    """mu - eta * (observed - tau)."""
    return mu - eta * (observed - tau)
