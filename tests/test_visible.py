"""Text from strangers on a terminal: nothing is obeyed, nothing hides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgen.visible import make_visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\n\ttext \u00e9\u4e2d\U0001f600", "plain\n\ttext \u00e9\u4e2d\U0001f600"),
        ("\x1b[2J\x1b]0;title\x07", "\u241b[2J\u241b]0;title\u2407"),
        ("a\rb\x00\x08\x7f", "a\u240db\u2400\u2408\u2421"),
        ("\x9b2J\x9d", "<U+009B>2J<U+009D>"),
        ("abc\u202edef\u2066", "abc<U+202E>def<U+2066>"),
        ("\U000e0041\ud800", "<U+E0041><U+D800>"),
        ("\U0001f468\u200d\U0001f469\ufe0f", "\U0001f468\u200d\U0001f469\ufe0f"),
        (
            "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
            "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
        ),
    ],
)
def test_make_visible(text: str, shown: str) -> None:
    assert make_visible(text) == shown


@given(st.text(), st.integers(0, 30))
def test_chunks_are_as_harmless_as_the_whole(text: str, cut: int) -> None:
    for shown in (make_visible(text), make_visible(text[:cut]) + make_visible(text[cut:])):
        assert not any(ord(char) < 0x20 and char not in "\n\t" or 0x7F <= ord(char) < 0xA0 for char in shown)
