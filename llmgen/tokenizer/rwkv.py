"""RWKV's "World" vocabulary: always the longest token that the text starts with.

Tokens are byte strings, written in the file with Python's escapes.
"""

from __future__ import annotations

import re
from functools import cached_property

from llmgen.tokenizer.vocab import Vocabulary

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
        """``unknown_id`` is what a byte becomes that no token starts with (dropped if None)."""
        self._vocab = vocab
        self._unknown_id = unknown_id

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        ids = {unescape(raw): id for id, raw in enumerate(self._vocab.raw)}
        ids.pop(b"", None)
        return ids

    @cached_property
    def _lengths(self) -> dict[bytes, list[int]]:
        """By the first two bytes of a token, which lengths occur, longest first."""
        lengths: dict[bytes, set[int]] = {}
        for token in self._ids:
            lengths.setdefault(token[:2], set()).add(len(token))
        return {head: sorted(sizes, reverse=True) for head, sizes in lengths.items()}

    def encode(self, text: str) -> list[int]:
        """The token ids of a text."""
        data = text.encode()
        ids, lengths = self._ids, self._lengths
        out: list[int] = []
        position = 0
        while position < len(data):
            sizes = lengths.get(data[position : position + 2], [])
            found = next((n for n in sizes if data[position : position + n] in ids), 1)
            id = ids.get(data[position : position + found], self._unknown_id)
            if id is not None:
                out.append(id)
            position += found
        return out
