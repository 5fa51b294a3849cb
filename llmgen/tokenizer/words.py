"""Finding the words of a vocabulary at a position of a text, fast even if there are long words."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from typing import Generic, TypeVar

from llmgen.errors import TokenizerError

LONGEST = 512
"""Characters or bytes in a word; the longest known one of these vocabularies has 128."""

Text = TypeVar("Text", str, bytes)


class WordTable(Generic[Text]):
    """The words in order, and for each the longest of the others that it begins with.

    All words at a position of a text then form a chain: the longest, the longest that this
    one begins with, and so on.  Of two strings p <= s, where s is not after a text that
    begins with p, s begins with p too; so the last word that is not after the text, in the
    order of strings, begins with every word that the text begins with.
    """

    def __init__(self, words: Iterable[Text]) -> None:
        """Raises TokenizerError where a word is longer than LONGEST."""
        self.words: list[Text] = sorted(words)
        self._longest = max(map(len, self.words), default=0)
        if self._longest > LONGEST:
            raise TokenizerError(
                f"a token of {self._longest:,} characters, expected at most {LONGEST} in a vocabulary of this "
                "kind; convert the model again, or get it from elsewhere"
            )
        self.shorter = array("i", bytes(4 * len(self.words)))
        """For each word the longest other one that it begins with, -1 if there is none."""
        chain: list[int] = []
        for i, word in enumerate(self.words):
            while chain and not word.startswith(self.words[chain[-1]]):
                chain.pop()
            self.shorter[i] = chain[-1] if chain else -1
            chain.append(i)

    def longest(self, text: Text, position: int) -> int:
        """The index of the longest word at ``position``, -1 if there is none."""
        at = bisect_right(self.words, text[position : position + self._longest]) - 1
        while at >= 0 and not text.startswith(self.words[at], position):
            at = self.shorter[at]
        return at
