"""Every filter against distributions worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from naive.sampling import filters, mirostat
from naive.sampling.candidates import Candidates, Weights, softmax


def from_probabilities(*p):
    with np.errstate(divide="ignore"):
        return Candidates(None, np.log(np.array(p, dtype=np.float32)))


def kept(c):
    """The tokens that are left, by id."""
    return sorted(c.token(i) for i in range(len(c)))


P = (0.15, 0.5, 0.1, 0.25)  # best first: tokens 1, 3, 0, 2


@pytest.mark.parametrize(
    ("k", "expected"), [(0, [0, 1, 2, 3]), (1, [1]), (2, [1, 3]), (4, [0, 1, 2, 3]), (9, [0, 1, 2, 3])]
)
def test_top_k(k, expected):
    assert kept(filters.top_k(from_probabilities(*P), k)) == expected


def test_top_k_ties_go_to_the_lower_id():
    assert kept(filters.top_k(from_probabilities(0.2, 0.3, 0.3, 0.3), 2)) == [1, 2]


@pytest.mark.parametrize(
    ("p", "expected"),
    [
        (0, [1]),
        (0.49, [1]),
        (0.51, [1, 3]),
        (0.74, [1, 3]),
        (0.8, [0, 1, 3]),
        (0.95, [0, 1, 2, 3]),
        (1, [0, 1, 2, 3]),
    ],
)
def test_top_p(p, expected):
    assert kept(filters.top_p(from_probabilities(*P), p)) == expected
    ranked = filters.top_k(from_probabilities(*P), 3)  # 0.5, 0.25, 0.15 of 0.9
    assert kept(filters.top_p(ranked, 0.55)) == [1]
    assert kept(filters.top_p(ranked, 0.56)) == [1, 3]


def test_top_p_reaching_exactly_is_enough():
    half = Candidates(None, np.zeros(4, dtype=np.float32))
    assert kept(filters.top_p(half, 0.5)) == [0, 1]


@pytest.mark.parametrize(
    ("p", "expected"),
    [(0, [0, 1, 2, 3]), (0.19, [0, 1, 2, 3]), (0.21, [0, 1, 3]), (0.49, [1, 3]), (0.51, [1]), (1, [1])],
)
def test_min_p(p, expected):
    assert kept(filters.min_p(from_probabilities(*P), p)) == expected


def test_min_p_of_one_keeps_all_that_are_best():
    assert kept(filters.min_p(from_probabilities(0.4, 0.2, 0.4), 1)) == [0, 2]


def test_typical():
    # H = 1.208 nats; |-ln p - H|: 0.69, 0.51, 1.09, 0.18 for tokens 0, 1, 2, 3 of P
    distance = [abs(-math.log(p) - sum(-q * math.log(q) for q in P)) for p in P]
    assert np.argsort(distance).tolist() == [3, 1, 0, 2]
    assert kept(filters.typical(from_probabilities(*P), 0)) == [3]
    assert kept(filters.typical(from_probabilities(*P), 0.2)) == [3]
    assert kept(filters.typical(from_probabilities(*P), 0.3)) == [1, 3]
    assert kept(filters.typical(from_probabilities(*P), 0.8)) == [0, 1, 3]
    assert kept(filters.typical(from_probabilities(*P), 1)) == [0, 1, 2, 3]
    assert kept(filters.typical(from_probabilities(*P, 0.0), 0.2)) == [3]


def test_top_n_sigma():
    logits = np.array([4.0, 2.0, 0.0, 2.0, -np.inf], dtype=np.float32)  # deviation of the finite: sqrt 2
    c = Candidates(None, logits)
    assert kept(filters.top_n_sigma(c, 1.0)) == [0]
    assert kept(filters.top_n_sigma(c, 1.42)) == [0, 1, 3]
    assert kept(filters.top_n_sigma(c, 3.0)) == [0, 1, 2, 3]
    assert filters.top_n_sigma(c, 0) is c
    assert filters.top_n_sigma(c, -1) is c


def test_xtc():
    c = from_probabilities(*P)
    assert kept(filters.xtc(c, 0.5, 0.2, u=0.4)) == [0, 2, 3]  # 1 and 3 reach 0.2: only 3 stays
    assert kept(filters.xtc(c, 0.5, 0.12, u=0.4)) == [0, 2]
    assert kept(filters.xtc(c, 0.5, 0.05, u=0.4)) == [2]
    assert kept(filters.xtc(c, 0.5, 0.3, u=0.4)) == [0, 1, 2, 3]  # only one reaches it
    assert filters.xtc(c, 0.5, 0.2, u=0.5) is c
    assert filters.xtc(c, 1.0, 0.51, u=0.0) is c
    assert filters.xtc(c, 0.0, 0.2, u=0.0) is c


def test_temperature():
    p = softmax(filters.temperature(from_probabilities(*P), 0.5).logits)
    squares = np.array(P) ** 2
    np.testing.assert_allclose(p, squares / squares.sum(), rtol=1e-5)
    for tiny in (1e-7, 1e-300):
        np.testing.assert_allclose(
            softmax(filters.temperature(from_probabilities(*P), tiny).logits), [0, 1, 0, 0]
        )
    flat = softmax(filters.temperature(from_probabilities(*P), 1e6).logits)
    np.testing.assert_allclose(flat, 0.25, rtol=1e-5)


def test_dynamic_temperature():
    even = Candidates(None, np.array([0.0, 0.0], dtype=np.float32))  # entropy is the largest: T = 1.5
    assert filters.dynamic_temperature(even, 1.0, 0.5, 1.0).logits.tolist() == [0, 0]
    c = from_probabilities(0.9, 0.1)
    h = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1)) / math.log(2)
    t = 0.5 + 1.0 * h**2
    expected = np.array([0.9, 0.1]) ** (1 / t)
    found = softmax(filters.dynamic_temperature(c, 1.0, 0.5, 2.0).logits)
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-5)
    t = 0 + 1.2 * h  # the lower end does not go under 0
    expected = np.array([0.9, 0.1]) ** (1 / t)
    found = softmax(filters.dynamic_temperature(c, 0.4, 0.8, 1.0).logits)
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-5)
    plain = filters.dynamic_temperature(c, 0.7, 0.0, 1.0).logits
    np.testing.assert_allclose(plain, filters.temperature(c, 0.7).logits)


def test_filters_keep_something_of_whatever_they_get():
    for logits in ([0.0], [-np.inf, 1.0], [3.0, -np.inf, -np.inf], [0.0] * 300):
        c = Candidates(None, np.array(logits, dtype=np.float32))
        for narrowed in (
            filters.top_k(c, 1),
            filters.top_p(c, 0.0),
            filters.min_p(c, 1.0),
            filters.typical(c, 0.0),
            filters.top_n_sigma(c, 1e-3),
            filters.xtc(c, 1.0, 0.0, 0.0),
            mirostat.cut_v1(c, 0.0, len(c)),
            mirostat.cut_v2(c, -1.0),
        ):
            assert len(narrowed) >= 1
            assert np.isfinite(softmax(narrowed.logits)).all()


def test_mirostat_1_keeps_the_estimated_number():
    # Zipf with s = 2: b_i = 2 t_i exactly, so the estimate is 2, e = 1 and
    # k = (2^mu / (1 - 1/N))^(1/2)
    n = 1000
    c = Candidates(None, (-2 * np.log(np.arange(1, n + 1))).astype(np.float32))
    assert len(mirostat.cut_v1(c, 6.0, n)) == int(math.sqrt(64 / (1 - 1 / n)))
    assert len(mirostat.cut_v1(c, 0.0, n)) == 1
    assert len(mirostat.cut_v1(c, 100.0, n)) == n
    s_one = Candidates(None, (-np.log(np.arange(1, n + 1))).astype(np.float32))
    assert len(mirostat.cut_v1(s_one, 9.0, n)) == pytest.approx(512 / math.log(n), abs=2)


def test_mirostat_2_keeps_surprises_up_to_mu():
    c = from_probabilities(0.5, 0.26, 0.12, 0.12)  # 1, 1.94, 3.06, 3.06 bits
    assert kept(mirostat.cut_v2(c, 2.0)) == [0, 1]
    assert kept(mirostat.cut_v2(c, 4.0)) == [0, 1, 2, 3]
    assert kept(mirostat.cut_v2(c, 0.5)) == [0]
    assert mirostat.surprise(Weights(c), 0) == pytest.approx(1.0, abs=1e-6)
    assert mirostat.update(10.0, 7.0, 5.0, 0.1) == pytest.approx(9.8)
