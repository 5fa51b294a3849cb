"""Rejection sampling of guesses: what comes out is distributed as without them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from llmgen.engine import Sampler, SamplingParams
from llmgen.sampling.logits import Candidates
from llmgen.sampling.rejection import Guess, judge

N_VOCAB = 60
_rng = np.random.default_rng(11)
TARGET = (_rng.standard_normal(N_VOCAB) * 2).astype(np.float32)
DRAFTS = {
    "near": (TARGET + 0.7 * _rng.standard_normal(N_VOCAB)).astype(np.float32),
    "far": (_rng.standard_normal(N_VOCAB) * 2).astype(np.float32),
    "the same": TARGET,
}
CHAINS = {
    "default": SamplingParams(seed=5),
    "plain": SamplingParams(seed=6, temp=1.0, top_k=0, top_p=1.0, min_p=0.0),
    "few": SamplingParams(seed=7, temp=1.5, top_k=4, top_p=1.0, min_p=0.0),
    "bias": SamplingParams(seed=8, temp=1.3, top_k=30, logit_bias={3: 2.0}, banned_tokens=(4,)),
}


def softmax(found: Candidates) -> np.ndarray:
    p = np.zeros(N_VOCAB)
    weights = np.exp(found.logits.astype(np.float64))
    p[slice(None) if found.ids is None else found.ids] = weights / weights.sum()
    return p


def chi_squared(counts: np.ndarray, p: np.ndarray) -> tuple[float, float]:
    """The statistic, and what it exceeds once in 10,000 times (Wilson and Hilferty's approximation)."""
    expected = counts.sum() * p
    assert not counts[p == 0].any()
    large = expected >= 5
    observed = np.append(counts[large], counts[~large].sum())
    expected = np.append(expected[large], expected[~large].sum())
    observed, expected = observed[expected > 0], expected[expected > 0]
    k = len(observed) - 1
    limit = k * (1 - 2 / (9 * k) + 3.719 * math.sqrt(2 / (9 * k))) ** 3
    return float(((observed - expected) ** 2 / expected).sum()), limit


def drawn(params: SamplingParams, draft: np.ndarray | None, n: int) -> tuple[np.ndarray, int]:
    """How often each token came of n draws, and how often it was the guess; a lookup guesses one token always."""
    sampler = Sampler(params, N_VOCAB)
    twin, counts, right = sampler.guessing(independent=True), np.zeros(N_VOCAB, dtype=int), 0
    for _ in range(n):
        guess = Guess(int(TARGET.argmax())) if draft is None else twin.guess(draft)
        token = sampler.sample(TARGET, guess).token_id
        counts[token] += 1
        right += token == guess.token
    return counts, right


@pytest.mark.parametrize(
    ("chain", "draft", "n"),
    [
        ("default", "near", 100_000),
        ("plain", "far", 10_000),
        ("few", "far", 10_000),
        ("few", "near", 10_000),
        ("bias", "near", 10_000),
        ("plain", "the same", 10_000),
        ("plain", None, 10_000),
        ("default", None, 10_000),
    ],
)
def test_the_distribution_is_that_of_the_plain_chain(chain, draft, n):
    params = CHAINS[chain]
    counts, right = drawn(params, None if draft is None else DRAFTS[draft], n)
    p = softmax(Sampler(params, N_VOCAB).distribution(TARGET))
    statistic, limit = chi_squared(counts, p)
    assert statistic < limit
    # as often as the theory says: sum of min(p, q)
    q = (
        np.eye(N_VOCAB)[TARGET.argmax()]
        if draft is None
        else softmax(Sampler(params, N_VOCAB).distribution(DRAFTS[draft]))
    )
    expected = np.minimum(p, q).sum()
    assert right / n == pytest.approx(expected, abs=5 * math.sqrt(0.25 / n))


def test_the_check_notices_what_is_wrong():
    """Taking every guess gives the draft's distribution."""
    params = CHAINS["plain"]
    twin, counts = Sampler(params, N_VOCAB).guessing(independent=True), np.zeros(N_VOCAB, dtype=int)
    for _ in range(5000):
        counts[twin.guess(DRAFTS["near"]).token] += 1
    statistic, limit = chi_squared(counts, softmax(Sampler(params, N_VOCAB).distribution(TARGET)))
    assert statistic > 2 * limit


def test_a_guess_that_the_chain_has_cut_is_never_accepted():
    p = Candidates(np.array([7, 2]), np.array([0.0, 1.0], np.float32))
    for among in (None, Candidates(np.array([2, 5]), np.array([0.0, 3.0], np.float32))):
        for u in (0.0, 0.3, 0.999):
            assert judge(p, Guess(5, among), 0.0, u)[0] in (2, 7)


def test_greedy_takes_the_best_whatever_was_guessed():
    sampler = Sampler(SamplingParams(temp=0.0), N_VOCAB)
    for token in (0, int(TARGET.argmax())):
        assert sampler.sample(TARGET, Guess(token)).token_id == TARGET.argmax()


def test_scores_are_those_of_the_token_that_came():
    params = CHAINS["plain"].with_(logprobs=2, logprobs_mode="processed")
    sampler = Sampler(params, N_VOCAB)
    p = softmax(Sampler(params, N_VOCAB).distribution(TARGET))
    for token in range(N_VOCAB):
        choice = sampler.sample(TARGET, Guess(token))
        assert choice.score.logprob == pytest.approx(math.log(p[choice.token_id]), abs=1e-4)


def test_mirostat_learns_from_the_token_that_came():
    params = SamplingParams(mirostat=2, seed=3, mirostat_tau=2.0)
    plain, judged = Sampler(params, N_VOCAB), Sampler(params, N_VOCAB)
    plain.accept(0)
    judged.accept(0)
    token = judged.sample(TARGET, Guess(1)).token_id
    p = softmax(plain.distribution(TARGET))
    assert judged.mu == pytest.approx(plain.mu - 0.1 * (-math.log2(p[token]) - 2.0), abs=1e-3)
