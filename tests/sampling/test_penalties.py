from __future__ import annotations

import numpy as np
import pytest

from llmgen.sampling.bias import banned_next
from llmgen.sampling.breakers import Breakers
from naive.sampling import penalties
from naive.sampling.candidates import Candidates
from naive.sampling.dry import dry, repeat_lengths


def candidates(*logits):
    return Candidates(None, np.array(logits, dtype=np.float32))


def tokens(*ids):
    return np.array(ids, dtype=np.int64)


def test_repetition_frequency_presence():
    c = candidates(2.0, -2.0, 0.0, 5.0)
    found = penalties.repetition(c, tokens(0, 1, 1, 2), repeat=2.0, frequency=0.5, presence=0.25)
    assert found.logits.tolist() == [2 / 2 - 0.75, -2 * 2 - 1.25, 0 - 0.75, 5.0]
    assert c.logits.tolist() == [2.0, -2.0, 0.0, 5.0]
    assert penalties.repetition(c, tokens(0), 1.0, 0.0, 0.0) is c
    assert penalties.repetition(c, tokens(), 2.0, 1.0, 1.0) is c


def test_repetition_on_some_candidates_only():
    c = candidates(1.0, 2.0, 3.0, 4.0).take(tokens(3, 1), ordered=True)
    found = penalties.repetition(c, tokens(0, 1, 2), 1.0, 0.0, 1.0)
    assert found.ids.tolist() == [3, 1]
    assert found.logits.tolist() == [4.0, 1.0]
    assert not found.ordered


def test_window():
    history = tokens(1, 2, 3)
    assert penalties.window(history, 2).tolist() == [2, 3]
    assert penalties.window(history, 9).tolist() == [1, 2, 3]
    assert penalties.window(history, 0).tolist() == []
    assert penalties.window(history, -1).tolist() == [1, 2, 3]


def test_bias_and_bans():
    c = candidates(1.0, np.inf, 3.0)
    found = penalties.add_bias(c, tokens(0, 1), np.array([2.5, -np.inf]))
    assert found.logits.tolist() == [3.5, -np.inf, 3.0]
    assert penalties.add_bias(c, tokens(), np.array([])) is c
    sequences = [[5], [1, 2], [3, 1, 4], [9, 9, 9, 9, 9]]
    assert banned_next(tokens(3, 1), sequences).tolist() == [2, 4, 5]
    assert banned_next(tokens(1), sequences).tolist() == [2, 5]
    assert banned_next(tokens(), sequences).tolist() == [5]


def naive_repeats(history):
    found = {}
    for end in range(len(history) - 1):
        length = 0
        while length <= end and history[end - length] == history[len(history) - 1 - length]:
            length += 1
        if length:
            found[history[end + 1]] = max(found.get(history[end + 1], 0), length)
    return found


def test_repeat_lengths():
    history = tokens(1, 2, 3, 9, 2, 3, 4, 1, 2, 3)
    assert repeat_lengths(history, 1, limit=100) == {9: 3, 4: 2}
    assert repeat_lengths(history, 1, limit=2) == {9: 2, 4: 2}
    assert repeat_lengths(history, 3, limit=100) == {9: 3}
    assert repeat_lengths(history, 4, limit=100) == {}
    assert repeat_lengths(history, 3, limit=2) == {}
    assert repeat_lengths(tokens(), 1, 5) == {}
    assert repeat_lengths(tokens(7), 1, 5) == {}
    assert repeat_lengths(tokens(7, 7, 7), 1, 5) == {7: 2}
    rng = np.random.default_rng(3)
    for _ in range(200):
        history = rng.integers(0, 3, rng.integers(1, 30))
        assert repeat_lengths(history, 1, limit=1000) == naive_repeats(history.tolist())


def test_dry_grows_with_the_repetition():
    history = tokens(1, 2, 3, 9, 2, 3, 4, 1, 2, 3)
    c = candidates(*[0.0] * 10)
    found = dry(c, history, None, multiplier=0.5, base=2.0, allowed_length=2).logits
    assert found[9] == -0.5 * 2.0 ** (3 - 2)
    assert found[4] == -0.5
    assert np.count_nonzero(found) == 2
    assert dry(c, history, None, 0.5, 2.0, allowed_length=4).logits.tolist() == [0.0] * 10
    assert dry(c, history, None, 0.0, 2.0, 2) is c
    long = np.ones(5000, dtype=np.int64)
    assert np.isfinite(dry(c, long, None, 1.0, 1.75, 2).logits).all()


@pytest.mark.parametrize(
    ("pieces", "breakers", "since"),
    [
        (["a", "b", "c"], ["x"], 3),
        (["a", "\n", "c"], ["\n"], 1),
        (["a", " x\ny"], ["\n"], 0),
        (["E", "N", "D", "a", "b"], ["END"], 2),
        (["xE", "N", "Dy", "b"], ["END"], 1),
        (["EN", "x", "D"], ["END"], 3),
        (["a", "é", "b"], ["é"], 1),
    ],
)
def test_breakers(pieces, breakers, since):
    b = Breakers(breakers, lambda token: pieces[token].encode())
    for token in range(len(pieces)):
        b.push(token)
    assert b.since == since


def test_dry_stops_at_breakers_and_spares_them():
    pieces = ["0", "a", "b", "c", "d", "\n", "e", "f", "g", "h"]
    history = tokens(1, 2, 3, 4, 5, 1, 2, 3)
    c = candidates(*[0.0] * 10)

    def penalized(history):
        b = Breakers(["\n"], lambda token: pieces[token].encode())
        for token in history:
            b.push(int(token))
        return np.flatnonzero(dry(c, history, b, 1.0, 2.0, 2).logits).tolist()

    assert penalized(history) == [4]
    assert penalized(tokens(1, 2, 3, 4, 1, 5, 2, 3)) == [4]
    assert penalized(tokens(1, 2, 3, 4, 1, 2, 5, 3)) == []  # one token since the breaker
    assert penalized(tokens(1, 2, 5, 1, 2)) == []  # the breaker itself is never penalized
