"""Stop strings across token borders, and text made harmless for a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgen.errors import UsageError
from llmgen.tokenizer import StopMatcher, make_visible


def run(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    matcher = StopMatcher(stops)
    out = []
    for piece in pieces:
        text, stopped = matcher.push(piece)
        out.append(text)
        if stopped:
            return "".join(out), True
    return "".join([*out, matcher.finish()]), False


@pytest.mark.parametrize(
    ("stops", "pieces", "text", "stopped"),
    [
        ([], ["a", "b"], "ab", False),
        (["END"], ["xE", "N", "Dy"], "x", True),
        (["END"], ["xE", "N", "y"], "xENy", False),
        (["END"], ["xEN"], "xEN", False),
        (["aab"], ["aaab"], "a", True),
        (["aab"], ["a", "a", "a", "b"], "a", True),
        (["ab", "abc"], ["abc"], "", True),
        (["bc", "abc"], ["abc"], "", True),
        (["bc", "abcd"], ["ab", "cd"], "a", True),
        (["\n\n"], ["a\n", "b\n", "\nc"], "a\nb", True),
        (["x"], ["x"], "", True),
    ],
)
def test_stops(stops: list[str], pieces: list[str], text: str, stopped: bool) -> None:
    assert run(stops, pieces) == (text, stopped)


def test_nothing_after_a_stop() -> None:
    matcher = StopMatcher(["b"])
    assert matcher.push("ab") == ("a", True)
    assert matcher.stopped_by == "b"
    assert matcher.push("c") == ("", True)
    assert matcher.finish() == ""


def test_empty_stops_are_wrong_usage() -> None:
    with pytest.raises(UsageError, match="empty"):
        StopMatcher([""])


@given(st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.lists(st.text("abc", max_size=3)))
def test_any_cut_gives_the_text_before_the_first_stop(stops: list[str], pieces: list[str]) -> None:
    whole = "".join(pieces)
    text, stopped = run(stops, pieces)
    assert (text, stopped) == run(stops, [whole]) == run(stops, list(whole))
    ends = [whole.find(stop) + len(stop) for stop in stops if stop in whole]
    assert stopped == bool(ends)
    if ends:
        assert any(whole[len(text) : min(ends)] == stop for stop in stops)
    assert whole.startswith(text)


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
