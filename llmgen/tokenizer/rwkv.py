"""RWKV's "World" vocabulary: always the longest token that the text begins with.

Tokens are byte strings, written in the file with Python's escapes.
"""

from __future__ import annotations

import re
from functools import cached_property

from llmgen.tokenizer.vocab import Vocabulary
from llmgen.tokenizer.words import WordTable

_ESCAPE = re.compile(rb"\\(?:x([0-9A-Fa-f]{2})|(.))", re.DOTALL)
_SHORT = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


def unescape(raw: bytes) -> bytes:
    """The bytes that a token's spelling stands for."""
    if b"\\" not in raw:
        return raw
    return _ESCAPE.sub(
        lambda match: bytes([int(match[1], 16)]) if match[1] is not None else _SHORT.get(match[2], match[2]),
        raw,
    )


class LongestMatchModel:
    """Encodes plain text; special tokens are found before it comes here."""

    def __init__(self, vocab: Vocabulary, unknown_id: int | None) -> None:
        """``unknown_id`` replaces a byte that no token begins with; None drops it."""
        self._vocab = vocab
        self._unknown = [] if unknown_id is None else [unknown_id]

    @cached_property
    def _words(self) -> tuple[WordTable[bytes], list[int]]:
        """The tokens, and the id of each."""
        ids = {unescape(raw): id for id, raw in enumerate(self._vocab.raw)}
        ids.pop(b"", None)
        table = WordTable(ids)
        return table, [ids[word] for word in table.words]

    def encode(self, text: str) -> list[int]:
        """The token ids of a text."""
        data = text.encode()
        table, ids = self._words
        out: list[int] = []
        position = 0
        while position < len(data):
            found = table.longest(data, position)
            if found >= 0:
                out.append(ids[found])
                position += len(table.words[found])
            else:
                out += self._unknown
                position += 1
        return out
