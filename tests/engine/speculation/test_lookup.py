"""The index of a lookup against a search through the whole text."""

from __future__ import annotations

import random

import pytest

from llmgen.engine.speculation.lookup import LONGEST, MOST_PLACES, LookupIndex, Match


def searched(tokens):
    """The longest match of the end with one of the last places where the last pair occurred."""
    n, best, n_places = len(tokens), None, 0
    for place in range(n - 1, 1, -1):
        if tokens[place - 2 : place] != tokens[-2:]:
            continue
        length = next((i for i in range(place) if tokens[place - 1 - i] != tokens[n - 1 - i]), place)
        length = min(length, LONGEST)
        if best is None or length > best.length:
            best = Match(place, length)
        n_places += 1
        if n_places == MOST_PLACES:
            break
    return best


@pytest.mark.parametrize("n_words", [2, 3, 10, 50])
def test_it_finds_what_a_search_finds(n_words):
    rng, index, tokens = random.Random(n_words), LookupIndex(), []
    for _ in range(400):
        tokens.append(rng.randrange(n_words))
        index.extend(tokens)
        assert index.find() == searched(tokens)


def test_after_a_cut_it_is_as_if_the_rest_had_never_been_there():
    rng, index, tokens = random.Random(0), LookupIndex(), []
    for _ in range(60):
        tokens = tokens[: rng.randrange(len(tokens) + 1)] + [
            rng.randrange(4) for _ in range(rng.randrange(30))
        ]
        index.begin(tokens)
        fresh = LookupIndex()
        fresh.begin(tokens)
        assert vars(index) == vars(fresh)
        assert index.find() == searched(tokens)


def test_what_followed_is_guessed_and_goes_on_with_itself():
    index = LookupIndex()
    index.begin([7, 1, 2, 3, 9, 1, 2])
    match = index.find()
    assert match == Match(place=3, length=2)
    assert index.continuation(match, 3) == [3, 9, 1]
    assert index.continuation(match, 9) == [3, 9, 1, 2, 3, 9, 1, 2, 3]


def test_nothing_is_found_where_nothing_is():
    index = LookupIndex()
    assert index.find() is None
    for tokens in ([5], [5, 6], [5, 6, 7]):
        index.begin(tokens)
        assert index.find() is None


def test_a_look_costs_the_same_however_long_the_text_is():
    """All pairs are alike here, which is the most places and the longest matches there can be."""
    index, reads = LookupIndex(), 0

    class Counting(list):
        def __getitem__(self, key):
            nonlocal reads
            reads += 1
            return super().__getitem__(key)

    index.begin([1] * 20_000)
    index.tokens, index._before = Counting(index.tokens), Counting(index._before)
    assert index.find().length == LONGEST
    assert reads < 4 * MOST_PLACES * LONGEST
