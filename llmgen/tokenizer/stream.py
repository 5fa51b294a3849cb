"""From token ids to text, one at a time."""

from __future__ import annotations

import codecs
import operator
from typing import Protocol, SupportsIndex

from llmgen.errors import UsageError, shown

_new_decoder = codecs.getincrementaldecoder("utf-8")


class TokenTexts(Protocol):
    """The part of :class:`Tokenizer` that turns ids into text."""

    bos_id: int | None
    eos_id: int | None
    add_bos: bool
    add_eos: bool
    puts_space_in_front: bool

    def token_bytes(self, id: int) -> bytes: ...

    def shown_bytes(self, id: int) -> bytes: ...


class StreamDecoder:
    """Joins the bytes of tokens and returns whole characters.

    A character split between tokens is held back until it is complete; each broken one
    becomes U+FFFD.  The texts that
    ``push`` and ``finish`` return, joined, are what :meth:`Tokenizer.decode` makes of the
    same ids.  Made by :meth:`Tokenizer.stream_decoder`.
    """

    def __init__(self, tokenizer: TokenTexts, skip_special: bool, continuation: bool) -> None:
        """See :meth:`Tokenizer.stream_decoder`."""
        self._tokenizer = tokenizer
        self._bytes = tokenizer.shown_bytes if skip_special else tokenizer.token_bytes
        self._whole = not continuation
        self._decoder = _new_decoder("replace")
        self._held_end: int | None = None
        self._restart()

    def _restart(self) -> None:
        self._first = True
        self._strip_space = self._whole and self._tokenizer.puts_space_in_front
        self._held_end = None

    def push(self, id: SupportsIndex) -> str:
        """The text that token ``id`` completes, often empty for half characters.

        Raises TokenizerError for an id outside the vocabulary, UsageError for what is no whole number.
        """
        id = _whole(id)
        tokenizer = self._tokenizer
        text = ""
        if self._held_end is not None:
            # it was not the last token after all
            text = self._emit(self._held_end)
            self._held_end = None
        first, self._first = self._first, False
        if self._whole and first and tokenizer.add_bos and id == tokenizer.bos_id:
            return text
        if self._whole and tokenizer.add_eos and id == tokenizer.eos_id:
            self._held_end = id
            return text
        return text + self._emit(id)

    def finish(self) -> str:
        """The text that is still held back; resets the decoder."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        self._restart()
        return text

    def _emit(self, id: int) -> str:
        raw = self._bytes(id)
        if self._strip_space and raw:
            raw = raw.removeprefix(b" ")
            self._strip_space = False
        return self._decoder.decode(raw)


def _whole(id: SupportsIndex) -> int:
    """A token id as a Python int, whatever integer type it is."""
    try:
        return operator.index(id)
    except TypeError:
        raise UsageError(f"token ids must be whole numbers, not {shown(id)}") from None
