"""Stop strings across token borders, and text made harmless for a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgen.errors import UsageError
from llmgen.tokenizer import StopMatcher


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
