"""Drafts with another vocabulary are refused, with the first difference."""

from __future__ import annotations

import pytest

from llmgen.engine.speculation.pairing import check_vocabularies
from llmgen.errors import UsageError


def vocabulary(*tokens, types=None, kind="gpt2"):
    return {
        "tokenizer.ggml.model": kind,
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.token_type": types or [1] * len(tokens),
    }


def test_the_same_and_unused_places_at_the_end():
    check_vocabularies(vocabulary("a", "b"), vocabulary("a", "b"))
    check_vocabularies(vocabulary("a", "b"), vocabulary("a", "b", "[PAD2]", types=[1, 1, 5]))
    check_vocabularies(vocabulary("a", "b", "[PAD2]", types=[1, 1, 5]), vocabulary("a", "b"))
    check_vocabularies({}, {})


@pytest.mark.parametrize(
    ("draft", "difference"),
    [
        (vocabulary("a", "x", "y"), "token 1 is 'x' there and 'b' here"),
        (vocabulary("a", "b"), "only the model has token 2, 'c'"),
        (vocabulary("a", "b", "c", "d"), "only the draft has token 3, 'd'"),
        (vocabulary("a", "b", "c", kind="llama"), "its tokenizer is 'llama', the model's 'gpt2'"),
        ({}, "its tokenizer is None"),
    ],
)
def test_the_first_difference_is_told(draft, difference):
    with pytest.raises(UsageError, match=f"another vocabulary: {difference}.*; choose a smaller model"):
        check_vocabularies(vocabulary("a", "b", "c"), draft)
