"""Guessing from the text itself: what followed the last few tokens when they occurred before.

Prompt lookup decoding (Saxena 2023, apoorvumang/prompt-lookup-decoding), with the search of LZ77:
as in zlib's deflate.c, every pair of tokens leads to the place where it occurred last, and each
place to the one before it.  Appending a token and finding a match take some microseconds, however
long the text is; memory grows with the text, which the context bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from llmgen.engine.sequence_state import common_prefix

MOST_PLACES = 16
"""Earlier occurrences of the last pair that are looked at."""
LONGEST = 32
"""A match of so many tokens is as good as a longer one."""


class Match(NamedTuple):
    """An earlier place in the text where it read as at its end."""

    place: int
    """The index of the token that followed there."""
    length: int
    """How many tokens were the same, at most LONGEST."""


class LookupIndex:
    """A text of tokens, and where its pairs of tokens occurred."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._last: dict[tuple[int, int], int] = {}  # a pair -> the place after it, the last time
        self._before: list[int] = []  # place -> the place after the same pair before that, -1: none

    def begin(self, tokens: Sequence[int]) -> None:
        """Become the index of any text; what it begins with in common with the one so far stays."""
        same = common_prefix(self.tokens, tokens)
        while len(self.tokens) > same:
            self._pop()
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Become the index of a text that begins with all of the one so far."""
        for token in tokens[len(self.tokens) :]:
            self.append(token)

    def append(self, token: int) -> None:
        """Add a token at the end."""
        self.tokens.append(token)
        n = len(self.tokens)
        if n >= 2:
            pair = (self.tokens[-2], token)
            self._before.append(self._last.get(pair, -1))
            self._last[pair] = n
        else:
            self._before.append(-1)

    def _pop(self) -> None:
        before = self._before.pop()
        if len(self.tokens) >= 2:
            pair = (self.tokens[-2], self.tokens[-1])
            if before < 0:
                del self._last[pair]
            else:
                self._last[pair] = before
        self.tokens.pop()

    def find(self) -> Match | None:
        """The longest match for the end of the text, of equally long ones the last; None where there is none."""
        if not self.tokens:
            return None
        best, place = None, self._before[-1]
        for _ in range(MOST_PLACES):
            if place < 0:
                break
            length = self._common(place)
            if best is None or length > best.length:
                best = Match(place, length)
            if length == LONGEST:
                break
            place = self._before[place - 1]
        return best

    def _common(self, place: int) -> int:
        """How many tokens before ``place`` are those at the end of the text."""
        tokens, n = self.tokens, len(self.tokens)
        most = min(LONGEST, place)
        length = 2  # the pair
        while length < most and tokens[place - 1 - length] == tokens[n - 1 - length]:
            length += 1
        return length

    def continuation(self, match: Match, n: int) -> list[int]:
        """n tokens as they followed there; where the text ends, the guess goes on with itself."""
        found = self.tokens[match.place : match.place + n]
        period = len(self.tokens) - match.place
        while len(found) < n:
            found.append(found[len(found) - period])
        return found
