from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgen.sampling import native
from llmgen.sampling.candidates import (
    Candidates,
    Weights,
    best,
    best_indices,
    fewest,
    largest,
    order,
    reaching,
    softmax,
    total_and_entropy,
)


def naive_order(logits, ids=None):
    ids = range(len(logits)) if ids is None else ids
    return sorted(range(len(logits)), key=lambda i: (-logits[i], ids[i]))


@pytest.mark.parametrize("n", [3, 7, 511, 513, 1000, 5003])
@pytest.mark.parametrize("levels", [1, 5, 10**6])
def test_best_is_a_stable_sort_cut_short(n, levels):
    rng = np.random.default_rng(n * levels)
    logits = (rng.integers(0, levels, n) - levels // 2).astype(np.float32) / 8
    logits[rng.random(n) < 0.1] = -np.inf
    logits[rng.random(n) < 0.1] = -0.0
    expected = naive_order(logits)
    for k in (0, 1, 2, 40, 128, n - 1, n, n + 5):
        assert best_indices(logits, k).tolist() == expected[: max(0, k)]
        chosen = largest(Candidates(None, logits), k)
        assert sorted(np.arange(n) if chosen.ids is None else chosen.ids) == sorted(expected[: max(0, k)])
    ids = rng.permutation(n)
    whole = Candidates(ids, logits)
    assert set(largest(whole, n - 3).ids) == set(ids[naive_order(logits, ids)[: n - 3]])
    assert best_indices(logits, 50, ids).tolist() == naive_order(logits, ids)[:50]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=700), st.integers(1, 100))
def test_best_on_any_values(values, k):
    logits = np.array(values, dtype=np.float32)
    assert best_indices(logits, k).tolist() == naive_order(logits)[:k]


@pytest.mark.parametrize("n", [10, 200, 3000, 40_000])
def test_fewest_reaches_the_mass(n):
    rng = np.random.default_rng(n)
    for spread in (0.1, 3.0):
        logits = rng.standard_normal(n).astype(np.float32) * np.float32(spread)
        c = Candidates(None, logits)
        w = Weights(c)
        for share in (0.0, 0.3, 0.9, 1.0):
            index, cumulative = fewest(logits, c.peak, w, share * w.total, None, c.maxima)
            assert index.tolist() == best_indices(logits, n)[: len(index)].tolist()
            assert len(index) == n or cumulative[-1] > share * w.total
            np.testing.assert_allclose(cumulative, np.cumsum(w.at(index)))


def test_order_head_take_locate():
    c = Candidates(np.array([3, 5, 9]), np.array([1.0, 2.0, 2.0], dtype=np.float32))
    ranked = order(c)
    assert ranked.ids.tolist() == [5, 9, 3]
    assert best(ranked, 1).ids.tolist() == [5]
    place, there = ranked.locate(np.array([3, 4, 9]))
    assert there.tolist() == [True, False, True]
    assert place[there].tolist() == [2, 1]
    whole = Candidates(None, np.zeros(4, dtype=np.float32))
    assert whole.locate(np.array([-1, 0, 3, 4]))[1].tolist() == [False, True, True, False]
    assert whole.take(np.array([2])).token(0) == 2


def test_softmax_and_entropy():
    p = softmax(np.log(np.array([0.5, 0.25, 0.25], dtype=np.float32)))
    np.testing.assert_allclose(p, [0.5, 0.25, 0.25], rtol=1e-6)
    with np.errstate(divide="ignore"):
        c = Candidates(None, np.log(np.array([0.5, 0.25, 0.25, 0.0])) + 7)
    assert total_and_entropy(c) == pytest.approx((7.0, 1.5 * np.log(2)))
    large = softmax(np.full(10_000, 3.0, dtype=np.float32))
    np.testing.assert_allclose(large, 1e-4, rtol=1e-5)
    assert softmax(np.array([-np.inf, 5.0])).tolist() == [0.0, 1.0]


def with_weights(w):
    """Weights of candidates with these probabilities, up to a factor."""
    with np.errstate(divide="ignore"):
        return Weights(Candidates(None, np.log(np.asarray(w, dtype=np.float64)).astype(np.float32)))


def test_pick_is_the_inverse_of_the_cumulative_sum():
    w = with_weights([0.0, 1.0, 0.0, 3.0, 0.0])
    assert [w.pick(u) for u in (0.0, 0.2499, 0.2501, 0.5, 1 - 2**-53)] == [1, 1, 3, 3, 3]
    assert with_weights(np.array([0.0, 1.0, 0.0, 3.0, 0.0]) * 1e-30).pick(0.5) == 3


def test_pick_in_blocks_agrees_with_one_sum():
    rng = np.random.default_rng(0)
    probabilities = rng.random(10_003) ** 8
    probabilities[rng.random(10_003) < 0.5] = 0
    w = with_weights(probabilities)
    weights = w.at(slice(None))
    cumulative = np.cumsum(weights)
    assert w.total == pytest.approx(cumulative[-1], rel=1e-6)
    for u in [*rng.random(300), 0.0, 1 - 2**-53]:
        found = w.pick(float(u))
        assert weights[found] > 0
        before = cumulative[found - 1] if found else 0.0
        assert before - 1e-3 <= u * cumulative[-1] <= cumulative[found] + 1e-3
    only = np.zeros(9000)
    only[8999] = 1
    assert [with_weights(only).pick(u) for u in (0.0, 1 - 2**-53)] == [8999, 8999]


@pytest.mark.parametrize("n", [4097, 5119, 49_152, 70_001])
def test_whole_vocabularies_through_kernels_agree_with_numpy(n, monkeypatch):
    rng = np.random.default_rng(n)
    logits = (rng.standard_normal(n) * 4).astype(np.float32)
    masked = logits.copy()
    masked[rng.random(n) < 0.3] = -np.inf
    for row in (logits, masked, np.full(n, -3.0, dtype=np.float32)):
        c = Candidates(None, row)
        assert c.maxima is not None
        assert c.peak == row.max()
        for bound in (-np.inf, -1.0, 6.0, c.peak, np.inf):
            assert reaching(row, bound, c.maxima).tolist() == np.flatnonzero(row >= bound).tolist()
        found = total_and_entropy(c)
        with monkeypatch.context() as patch:
            patch.setattr("llmgen.sampling.native._function", lambda name: None)
            expected = total_and_entropy(Candidates(None, row))
            assert Candidates(None, row).maxima is None
            assert best(Candidates(None, row), 40).ids.tolist() == best(c, 40).ids.tolist()
        assert found == pytest.approx(expected, rel=2e-6, abs=2e-6)
    assert native.deviation(masked, 0.0) is None
    assert native.deviation(logits, -20.0) == pytest.approx(logits.std(dtype=np.float64), rel=1e-5)
    np.testing.assert_array_equal(native.scaled(logits, 3.0, 0.7), (logits - np.float32(3)) / np.float32(0.7))
    np.testing.assert_array_equal(native.nearness(logits, 1.5), -abs(logits - np.float32(1.5)))
    masked[n - 1] = np.nan
    assert np.isnan(Candidates(None, masked).peak)
