"""SentencePiece's table of character replacements, ``precompiled_charsmap``.

A little-endian 32-bit size, that many bytes of a double array (a trie in which the child
of a node for byte c is found at base ^ c), and the replacements, each closed by a NUL.
Layout: sentencepiece's src/normalizer.cc and the darts-clone library it uses.
"""

from __future__ import annotations

import os.path
from bisect import bisect
from collections.abc import Iterable

import numpy as np

from llmgen.errors import TokenizerError

_LABEL = (1 << 31) | 0xFF
_VALUE = (1 << 31) - 1


class Prefixes:
    """Finds how far a text agrees with one of a set of words."""

    def __init__(self, words: Iterable[str]) -> None:
        """The words in any order."""
        self._words = sorted(set(words) - {""})
        self._firsts = {word[0] for word in self._words}
        self._longest = max(map(len, self._words), default=0)

    def agree(self, text: str, position: int) -> int:
        """The most characters at ``position`` that a word also begins with."""
        if text[position] not in self._firsts:
            return 0
        here = text[position : position + self._longest]
        at = bisect(self._words, here)
        return max(len(os.path.commonprefix([here, word])) for word in self._words[max(at - 1, 0) : at + 1])


class Charsmap:
    """Replaces the longest sequence of characters that the table knows, from left to right."""

    def __init__(self, table: object) -> None:
        """``table`` is the array of bytes in the file, or None for no replacements."""
        self._units: list[int] = []
        self._texts = b""
        self._memo: dict[str, str] = {}
        if table is None:
            return
        if not isinstance(table, np.ndarray) or table.dtype.itemsize != 1:
            raise _broken("it is not an array of bytes")
        blob = table.tobytes()
        size = int.from_bytes(blob[:4], "little")
        if len(blob) < 4 or size % 4 or 4 + size >= len(blob):
            raise _broken(f"{len(blob)} bytes do not hold a table of {size} bytes and its texts")
        self._units = np.frombuffer(blob, "<u4", size // 4, 4).tolist()
        self._texts = blob[4 + size :]

    def apply(self, text: str, keeps: Prefixes) -> str:
        """The text with its characters replaced; what agrees with ``keeps`` stays as it is."""
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
        """How many characters the longest known sequence at ``position`` has, and its replacement.

        A character that starts none stays as it is.
        """
        units = self._units
        node = self._base(0)
        found = (1, text[position])
        for end in range(position, len(text)):
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
        end = self._texts.find(b"\0", at)
        if at >= len(self._texts) or end < 0:
            raise _broken("an entry points outside it")
        return self._texts[at:end].decode("utf-8", "replace")


def _broken(why: str) -> TokenizerError:
    return TokenizerError(
        f"tokenizer.ggml.precompiled_charsmap is damaged: {why}; "
        "convert the model again, or get it from elsewhere"
    )
