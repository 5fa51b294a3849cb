"""SentencePiece's table of character replacements, ``precompiled_charsmap``.

A little-endian 32-bit size, that many bytes of a double array (a trie in which the child
of a node for byte c is found at base ^ c), and the replacements, each closed by a NUL.
Layout: sentencepiece's src/normalizer.cc and the darts-clone library it uses.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect
from collections.abc import Iterable

import numpy as np

from llmgen.errors import TokenizerError

_LABEL = (1 << 31) | 0xFF
_VALUE = (1 << 31) - 1
_LONGEST_KEY = 256
_LONGEST_TEXT = 256
"""The longest sequence and the longest replacement, in bytes; Unicode's own have at most 33."""


class Prefixes:
    """Finds how much of a text matches the beginning of one of a set of words."""

    def __init__(self, words: Iterable[str]) -> None:
        """The words in any order."""
        self._words = sorted(set(words) - {""})
        self._firsts = {word[0] for word in self._words}
        self._longest = max(map(len, self._words), default=0)

    def agree(self, text: str, position: int) -> int:
        """How many characters at ``position`` match the beginning of a word, at most."""
        if text[position] not in self._firsts:
            return 0
        here = text[position : position + self._longest]
        at = bisect(self._words, here)
        return max(_agreement(here, word) for word in self._words[max(at - 1, 0) : at + 1])


def _agreement(a: str, b: str) -> int:
    """The length of the common prefix of two strings."""
    return bisect(range(1, min(len(a), len(b)) + 1), False, key=lambda n: a[:n] != b[:n])


class Charsmap:
    """Replaces the longest sequence of characters in the table, from left to right."""

    def __init__(self, table: object) -> None:
        """``table`` is the array of bytes in the file, or None for no replacements."""
        self._units = array("I")
        self._texts = b""
        if table is None:
            return
        if not isinstance(table, np.ndarray) or table.dtype.itemsize != 1:
            raise _broken("it is not an array of bytes")
        blob = table.tobytes()
        size = int.from_bytes(blob[:4], "little")
        if len(blob) < 4 or size % 4 or 4 + size >= len(blob):
            raise _broken(f"{len(blob)} bytes do not hold a table of {size} bytes and its texts")
        self._units = array("I", blob[4 : 4 + size])
        if sys.byteorder == "big":
            self._units.byteswap()
        self._texts = blob[4 + size :]

    def apply(self, text: str, keeps: Prefixes) -> str:
        """The text with its characters replaced, except those that match ``keeps``."""
        if not self._units:
            return text
        out = []
        position = 0
        while position < len(text):
            size = keeps.agree(text, position)
            replaced = text[position : position + size]
            if not size:
                size, replaced = self._longest(text, position)
            out.append(replaced)
            position += size
        return "".join(out)

    def _longest(self, text: str, position: int) -> tuple[int, str]:
        """The length of the longest known sequence at ``position``, and its replacement.

        A character that starts none is its own replacement.
        """
        units = self._units
        node = self._base(0)
        found = (1, text[position])
        for end in range(position, len(text)):
            if end - position > _LONGEST_KEY:
                raise _broken(f"a sequence in it is longer than {_LONGEST_KEY} characters")
            for byte in text[end].encode():
                node ^= byte
                if not byte or node >= len(units) or units[node] & _LABEL != byte:
                    return found
                leaf = units[node] >> 8 & 1
                node ^= self._base(node)
            if leaf:
                found = (end + 1 - position, self._text(node))
        return found

    def _base(self, node: int) -> int:
        unit = self._units[node]
        return unit >> 10 << ((unit & 1 << 9) >> 6)

    def _text(self, node: int) -> str:
        """The replacement that a leaf points to."""
        at = self._units[node] & _VALUE if node < len(self._units) else len(self._texts)
        end = self._texts.find(b"\0", at, at + _LONGEST_TEXT + 1)
        if end < 0 and at + _LONGEST_TEXT < len(self._texts):
            raise _broken(f"a replacement in it is longer than {_LONGEST_TEXT} bytes")
        if at >= len(self._texts) or end < 0:
            raise _broken("an entry points outside it")
        return self._texts[at:end].decode("utf-8", "replace")


def _broken(why: str) -> TokenizerError:
    return TokenizerError(
        f"tokenizer.ggml.precompiled_charsmap is damaged: {why}; "
        "convert the model again, or get it from elsewhere"
    )
