from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgen.generation.candidates import (
    Candidates,
    best,
    best_indices,
    entropy,
    fewest,
    largest,
    order,
    pick,
    softmax,
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
        w = softmax(logits)
        for mass in (0.0, 0.3, 0.9, 1.0):
            index, cumulative = fewest(logits, w, mass)
            assert index.tolist() == best_indices(logits, n)[: len(index)].tolist()
            assert len(index) == n or cumulative[-1] > mass
            np.testing.assert_allclose(cumulative, np.cumsum(w[index], dtype=np.float64))


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
    assert entropy(np.array([0.5, 0.25, 0.25, 0.0])) == pytest.approx(1.5 * np.log(2))
    large = softmax(np.full(10_000, 3.0, dtype=np.float32))
    np.testing.assert_allclose(large, 1e-4, rtol=1e-5)
    assert softmax(np.array([-np.inf, 5.0])).tolist() == [0.0, 1.0]


def test_pick_is_the_inverse_of_the_cumulative_sum():
    w = np.array([0.0, 1.0, 0.0, 3.0, 0.0])
    assert [pick(w, u) for u in (0.0, 0.2499, 0.25, 0.5, 1 - 2**-53)] == [1, 1, 3, 3, 3]
    assert pick(w * 1e-300, 0.5) == 3


def test_pick_in_blocks_agrees_with_one_sum():
    rng = np.random.default_rng(0)
    w = rng.random(10_000) ** 8
    w[rng.random(10_000) < 0.5] = 0
    cumulative = np.cumsum(w)
    for u in [*rng.random(300), 0.0, 1 - 2**-53]:
        exact = min(int(np.searchsorted(cumulative, u * cumulative[-1], side="right")), np.flatnonzero(w)[-1])
        found = pick(w, float(u))
        assert w[found] > 0
        assert abs(cumulative[found] - cumulative[exact]) <= w[found] + w[exact]
        assert (
            found == exact or abs(u * cumulative[-1] - cumulative[min(found, exact)]) < 1e-9 * cumulative[-1]
        )
    w = np.zeros(9000)
    w[8999] = 1
    assert [pick(w, u) for u in (0.0, 1 - 2**-53)] == [8999, 8999]
