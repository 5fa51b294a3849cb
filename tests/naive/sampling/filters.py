"""Samplers that narrow the candidates or change their temperature.

Each is a pure function: candidates in, candidates out, by rising token id, and at least
one always stays.  Where llmgen shares a method with llama.cpp, the edge rules (which side
of a border stays, what switches it off) are those of its src/llama-sampler.cpp.
"""

from __future__ import annotations

import math

import numpy as np

from naive.sampling.candidates import (
    Candidates,
    Weights,
    best,
    fewest,
    largest,
    log_total,
    order,
    total_and_entropy,
)

LEAST_TEMPERATURE = 1e-6
_FEW = 64


def top_k(c: Candidates, k: int) -> Candidates:
    """The k most likely (Fan, Lewis, Dauphin 2018); k <= 0 or k >= n keeps all."""
    return c if k <= 0 else largest(c, k)


def top_p(c: Candidates, p: float) -> Candidates:
    """Nucleus (Holtzman et al. 2019): the fewest most likely that together reach p.

    p >= 1 keeps all, p = 0 the best one.
    """
    if p >= 1 or len(c) <= 1:
        return c
    w = Weights(c)
    mass = p * w.total
    index, cumulative = fewest(c.logits, w, c.ids)
    count = int(cumulative.searchsorted(mass)) + 1
    return c.take(np.sort(index[:count]))


def min_p(c: Candidates, p: float) -> Candidates:
    """Those at least p times as likely as the best (Nguyen et al. 2024); p <= 0 keeps all."""
    if p <= 0:
        return c
    return c.over(c.peak + math.log(p))


def typical(c: Candidates, p: float) -> Candidates:
    """Locally typical (Meister et al. 2022): those whose surprise is nearest the entropy H.

    Taken by rising |-ln p_i - H| until their sum exceeds p; p >= 1 keeps all.
    """
    if p >= 1 or len(c) <= 1:
        return c
    total, h = total_and_entropy(c)
    center = total - h  # -|-ln p - H| = -|logit - center|
    near = -np.abs(c.logits - c.logits.dtype.type(center))
    w = Weights(c)
    index, cumulative = fewest(near, w, c.ids)
    count = int(cumulative.searchsorted(p * w.total, side="right")) + 1
    return c.take(np.sort(index[:count]))


def top_n_sigma(c: Candidates, n: float) -> Candidates:
    """Logits no further than n standard deviations below the best (Tang et al. 2024); n <= 0 is off.

    Mean and (population) deviation are over the finite logits.
    """
    if n <= 0 or len(c) <= 1:
        return c
    sigma = float(c.logits[np.isfinite(c.logits)].std(dtype=np.float64))
    return c.over(c.peak - n * sigma)


def xtc(c: Candidates, probability: float, threshold: float, u: float) -> Candidates:
    """Exclude top choices: with this probability, of those with p >= threshold only the least stays.

    Source: the method's proposal by p-e-w (text-generation-webui, 2024).  ``u``
    is the step's uniform draw; a threshold over 0.5, where no two can reach it,
    is off.
    """
    if probability <= 0 or threshold > 0.5 or len(c) < 2 or u >= probability:
        return c
    ranked = best(c, _FEW) if threshold > 1 / _FEW else order(c)
    p = np.exp(ranked.logits.astype(np.float64) - log_total(c))
    above = int(np.count_nonzero((p >= threshold) & (p > 0)))
    if above < 2:
        return c
    place, _ = c.locate(np.array([ranked.token(i) for i in range(above - 1)]))
    keep = np.ones(len(c), dtype=bool)
    keep[place] = False
    return c.keep(keep)


def temperature(c: Candidates, temp: float) -> Candidates:
    """logits / temp.  Below 1e-6, which no float32 difference survives, 1e-6 is used."""
    divisor = max(temp, LEAST_TEMPERATURE)
    return c.replace((c.logits - c.logits.dtype.type(c.peak)) / divisor, c.ordered)


def dynamic_temperature(c: Candidates, temp: float, spread: float, exponent: float) -> Candidates:
    """A temperature from temp - spread to temp + spread that grows with the entropy H.

    T = low + (high - low) * (H / ln n) ** exponent, where low is not under 0.
    Source: kalomaze's dynamic temperature, as in llama.cpp.
    """
    if spread <= 0:
        return temperature(c, temp)
    if len(c) <= 1:
        return c
    low, high = max(0.0, temp - spread), temp + spread
    share = min(1.0, total_and_entropy(c)[1] / math.log(len(c)))
    return temperature(c, low + (high - low) * share**exponent)
