"""What the compiled kernels know of a row of logits, against a plain sort and plain sums."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgen.backends.cpu import sampling as kernels
from llmgen.errors import LLMGenError
from llmgen.sampling.logits import Candidates, check_finite, log_total
from naive.sampling import candidates as naive


def naive_order(logits, ids=None):
    ids = range(len(logits)) if ids is None else ids
    return sorted(range(len(logits)), key=lambda i: (-logits[i], ids[i]))


@pytest.mark.parametrize("n", [1, 3, 7, 511, 513, 1000, 5003])
@pytest.mark.parametrize("levels", [1, 5, 10**6])
def test_best_is_a_stable_sort_cut_short(n, levels):
    rng = np.random.default_rng(n * levels)
    logits = (rng.integers(0, levels, n) - levels // 2).astype(np.float32) / 8
    logits[rng.random(n) < 0.1] = -np.inf
    logits[rng.random(n) < 0.1] = -0.0
    logits[n // 2] = 0.5
    expected = naive_order(logits)
    for k in (0, 1, 2, 40, 128, n - 1, n, n + 5):
        if k <= 1024:
            assert kernels.head(logits, k)[0].tolist() == expected[:k]
        chosen = naive.largest(naive.Candidates(None, logits), k)
        assert sorted(np.arange(n) if chosen.ids is None else chosen.ids) == sorted(expected[:k])
    ids = rng.permutation(n)
    some = naive.largest(naive.Candidates(ids, logits), n - 3)
    assert set(some.ids) == set(ids[naive_order(logits, ids)[: max(0, n - 3)]])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=700), st.integers(1, 100))
def test_best_on_any_values(values, k):
    logits = np.array(values, dtype=np.float32)
    assert kernels.head(logits, k)[0].tolist() == naive_order(logits)[:k]
    assert log_total(logits) == pytest.approx(math.log(math.fsum(np.exp(logits.astype(float)))), abs=1e-6)


def test_log_probabilities_of_candidates():
    some = Candidates(np.array([3, 5, 9]), np.log(np.array([0.1, 0.2, 0.2], dtype=np.float32)))
    assert [(one.token_id, pytest.approx(one.logprob, abs=1e-6)) for one in some.best(2)] == [
        (5, math.log(0.4)),
        (9, math.log(0.4)),
    ]
    assert some.score(3, 0).logprob == pytest.approx(math.log(0.2), abs=1e-6)
    assert some.score(4, 1).logprob == -math.inf
    assert some.token(2) == 9
    assert Candidates(None, np.zeros(4, dtype=np.float32)).token(2) == 2


def test_rows_that_cannot_be_used():
    for bad, what in ((np.nan, "NaN"), (np.inf, "infinite")):
        row = np.array([0, bad, 1], dtype=np.float32)
        with pytest.raises(LLMGenError, match=what):
            log_total(row)
        with pytest.raises(LLMGenError, match=what):
            check_finite(row)
    with pytest.raises(LLMGenError, match="masked"):
        log_total(np.full(3, -np.inf, dtype=np.float32))


def test_rows_of_any_layout():
    columns = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert kernels.head(columns[:, 1], 2)[0].tolist() == [3, 2]


def test_softmax_and_entropy():
    p = naive.softmax(np.log(np.array([0.5, 0.25, 0.25], dtype=np.float32)))
    np.testing.assert_allclose(p, [0.5, 0.25, 0.25], rtol=1e-6)
    with np.errstate(divide="ignore"):
        c = naive.Candidates(None, np.log(np.array([0.5, 0.25, 0.25, 0.0])) + 7)
    assert naive.total_and_entropy(c) == pytest.approx((7.0, 1.5 * np.log(2)))
    large = naive.softmax(np.full(10_000, 3.0, dtype=np.float32))
    np.testing.assert_allclose(large, 1e-4, rtol=1e-5)
    assert naive.softmax(np.array([-np.inf, 5.0])).tolist() == [0.0, 1.0]


def with_probabilities(w):
    """Logits of tokens with these probabilities, up to a factor."""
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(w, dtype=np.float64)).astype(np.float32)


def drawn(logits, draws):
    """The tokens that uniform draws fall on, by the compiled chain."""
    chain = kernels.Chain(len(logits), [])
    return [chain.choose(logits, float(u))[0] for u in draws]


def test_a_draw_is_the_inverse_of_the_cumulative_sum():
    row = with_probabilities([0.0, 1.0, 0.0, 3.0, 0.0])
    draws = (0.0, 0.2499, 0.2501, 0.5, 1 - 2**-53)
    assert drawn(row, draws) == [1, 1, 3, 3, 3]
    assert [naive.Weights(naive.Candidates(None, row)).pick(u) for u in draws] == [1, 1, 3, 3, 3]
    assert drawn(row - 60, [0.5]) == [3]


def test_draws_in_blocks_agree_with_one_sum():
    rng = np.random.default_rng(0)
    probabilities = rng.random(10_003) ** 8
    probabilities[rng.random(10_003) < 0.5] = 0
    row = with_probabilities(probabilities)
    cumulative = np.cumsum(np.exp(row.astype(np.float64)))
    draws = [*rng.random(300), 0.0, 1 - 2**-53]
    for u, found in zip(draws, drawn(row, draws), strict=True):
        assert row[found] > -np.inf
        before = cumulative[found - 1] if found else 0.0
        assert before - 1e-3 <= u * cumulative[-1] <= cumulative[found] + 1e-3
    only = np.zeros(9000)
    only[8999] = 1
    assert drawn(with_probabilities(only), [0.0, 1 - 2**-53]) == [8999, 8999]
