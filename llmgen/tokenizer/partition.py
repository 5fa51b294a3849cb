"""Finding the special tokens that are spelled out in a text, before the rest is tokenized."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

_SPACE = " \t\n\v\f\r"

Span = tuple[int, int]
"""A stretch of text: the first position, and the one after the last."""


class Special(NamedTuple):
    """A token that is recognised by its spelling.

    ``control``: recognised only if control tokens are asked for.  ``guarded``: never in data.
    ``strips``: it removes the white space on its right.
    """

    text: str
    id: int
    control: bool
    guarded: bool
    strips: bool = False


class Partition:
    """Cuts a text at the spellings of special tokens.

    Longer spellings are looked for first, and each from left to right in what the ones
    before it left over, as llama.cpp does (``tokenizer_st_partition``); so a long
    spelling wins over a shorter one that starts further left.
    """

    def __init__(self, specials: Iterable[Special]) -> None:
        # By the length in bytes, not in characters.
        order = sorted((s for s in specials if s.text), key=lambda s: -len(s.text.encode()))
        # A vocabulary can have thousands of them, most of which begin with the same few letters:
        # a text without those letters needs no further search.
        self._groups: dict[tuple[str, bool], list[tuple[int, Special]]] = defaultdict(list)
        for rank, special in enumerate(order):
            self._groups[special.text[:4], special.control].append((rank, special))

    def cut(
        self, text: str, control: bool, data: Sequence[Span] = (), guarded: Collection[str] = ()
    ) -> Iterator[str | int]:
        """The text as plain parts (str, never empty) and tokens (int), in order.

        ``control``: recognise control tokens.  Guarded tokens, and those of the spellings
        ``guarded``, are not, where they overlap one of the ``data`` spans, which are in
        order and do not overlap one another.
        """
        taken = _Taken(text, data, guarded)
        for _, special in sorted(self._present(text, control), key=lambda item: item[0]):
            taken.take(special)
        return taken.parts()

    def _present(self, text: str, control: bool) -> Iterator[tuple[int, Special]]:
        for (head, is_control), group in self._groups.items():
            if (control or not is_control) and head in text:
                yield from (item for item in group if item[1].text in text)


class _Taken:
    """The stretches of one text that tokens have taken, sorted by position."""

    def __init__(self, text: str, data: Sequence[Span], guarded: Collection[str]) -> None:
        self._text = text
        self._guarded = guarded
        self._spans: list[tuple[int, int, int]] = []
        self._data = [span for span in data if span[0] < span[1]]

    def take(self, special: Special) -> None:
        """Take every free occurrence of one spelling."""
        text = self._text
        size = len(special.text)
        guarded = special.guarded or special.text in self._guarded
        position = text.find(special.text)
        while position >= 0:
            end = position + size
            block = self._block(position, end, guarded)
            if block is None:
                if special.strips:
                    end = self._strip(end)
                insort(self._spans, (position, end, special.id))
            position = text.find(special.text, end if block is None else block)

    def _block(self, start: int, end: int, guarded: bool) -> int | None:
        """The end of a taken or forbidden stretch that overlaps this one, None if it is free."""
        blocks: list[Sequence[tuple[int, ...]]] = [self._spans]
        if guarded:
            blocks.append(self._data)
        for spans in blocks:
            after = bisect_right(spans, (start, len(self._text) + 1))
            for span in spans[max(after - 1, 0) : after + 1]:
                if span[0] < end and span[1] > start:
                    return span[1]
        return None

    def _strip(self, end: int) -> int:
        """Where the white space after ``end`` stops."""
        after = bisect_right(self._spans, (end, 0, 0))
        limit = self._spans[after][0] if after < len(self._spans) else len(self._text)
        while end < limit and self._text[end] in _SPACE:
            end += 1
        return end

    def parts(self) -> Iterator[str | int]:
        """Plain parts and tokens in order."""
        start = 0
        for first, last, token in self._spans:
            if first > start:
                yield self._text[start:first]
            yield token
            start = last
        if start < len(self._text):
            yield self._text[start:]
