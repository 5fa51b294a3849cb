"""Ranked merges of adjacent spellings, the core of byte pair encoding: in Python and by a library.

The ``tokenizers`` library merges fast, but takes a third of a second to build for a large
vocabulary; a few lines of Python start at once.  Both give llama.cpp's ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from llmgen.errors import TokenizerError
from llmgen.tokenizer.unicode import is_utf8

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

SpellOut = Callable[[str], list[int]]
"""The tokens of a spelling that is no token itself."""


class Merger(Protocol):
    """Turns pieces of text into ids; no merge reaches from one piece into another."""

    def encode(self, pieces: list[str]) -> list[int]:
        """The ids of the pieces in order."""


class PlainMerger:
    """Merges in Python: ready at once, for short texts.

    A piece of n characters takes n steps, each of which searches n ranks.
    """

    def __init__(self, ids: dict[str, int], merges: list[bytes], spell_out: SpellOut) -> None:
        """``merges``: pairs of spellings with a space between, the best first."""
        self._ids = ids
        self._spell_out = spell_out
        lines = decode_lines(merges)
        # a merge that occurs twice has the better rank
        self._ranks = dict(zip(reversed(lines), range(len(lines) - 1, -1, -1), strict=True))
        self._none = len(lines)

    def encode(self, pieces: list[str]) -> list[int]:
        """See :class:`Merger`."""
        ids, spell_out = self._ids, self._spell_out
        out: list[int] = []
        for piece in pieces:
            for part in self._merged(piece):
                id = ids.get(part)
                if id is None:
                    out += spell_out(part)
                else:
                    out.append(id)
        return out

    def _merged(self, piece: str) -> list[str]:
        """The spellings that remain when nothing can be merged: the best pair first, of equals the leftmost."""
        ranks, none = self._ranks, self._none

        def rank(left: str, right: str) -> int:
            return ranks.get(f"{left} {right}", none)

        parts = list(piece)
        pairs = [rank(left, right) for left, right in pairwise(parts)]
        while pairs:
            best = min(pairs)
            if best == none:
                break
            at = pairs.index(best)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
            del pairs[at]
            if at:
                pairs[at - 1] = rank(parts[at - 1], parts[at])
            if at < len(pairs):
                pairs[at] = rank(parts[at], parts[at + 1])
        return parts


class LibraryMerger:
    """Merges with the ``tokenizers`` library, any amount of text.

    The library knows only merges of tokens into tokens; llama.cpp merges spellings, and
    looks at the end which of them are tokens.  So spellings that only merges name get
    *phantom* ids past the end of the vocabulary, and what is left of them in the result
    is spelled out.
    """

    def __init__(
        self,
        ids: dict[str, int],
        merges: list[bytes],
        spell_out: SpellOut,
        n_vocab: int,
        smallest: Sequence[str],
        byte_fallback: bool,
    ) -> None:
        """``smallest``: what merging starts from, besides the characters of the tokens.

        ``byte_fallback``: a character that is no token becomes those of its bytes.
        """
        self._n_vocab = n_vocab
        self._spell_out = spell_out
        self._phantoms: dict[int, list[int]] = {}
        self._library = self._build(dict(ids), merges, smallest, byte_fallback)

    def encode(self, pieces: list[str]) -> list[int]:
        """See :class:`Merger`."""
        ids: list[int] = self._library.encode(pieces, is_pretokenized=True, add_special_tokens=False).ids
        if self._phantoms and max(ids, default=0) >= self._n_vocab:
            phantoms = self._phantoms
            return [real for id in ids for real in phantoms.get(id, (id,))]
        return ids

    def _build(
        self, ids: dict[str, int], merges: list[bytes], smallest: Sequence[str], fallback: bool
    ) -> Library:
        from tokenizers import Tokenizer as Library
        from tokenizers.models import BPE

        pairs = _pairs(merges)
        self._add_phantoms(ids, smallest)
        # The library aborts over a merge that makes more bytes than the longest token has.
        longest = max(map(len, map(str.encode, ids)), default=0)
        if max(map(len, merges), default=1) - len(" ") <= longest:
            with suppress(Exception):
                return Library(BPE(ids, pairs, byte_fallback=fallback))
        # A merge names, or makes, what is no token; rare, and slow to look for.
        self._add_phantoms(ids, {*map("".join, pairs)}.union(*pairs))
        try:
            return Library(BPE(ids, pairs, byte_fallback=fallback))
        except Exception as error:
            raise TokenizerError(
                f"the merges and the tokens of the vocabulary do not fit together ({error}); "
                "convert the model again, or get it from elsewhere"
            ) from error

    def _add_phantoms(self, ids: dict[str, int], met: Iterable[str]) -> None:
        """Give an id to every spelling that merging can meet, and note what to write instead."""
        for spelling in sorted(set(met).difference(ids)):
            id = self._n_vocab + len(self._phantoms)
            self._phantoms[id] = self._spell_out(spelling)
            ids[spelling] = id


def decode_lines(merges: list[bytes]) -> list[str]:
    """The merges as text; one that is not UTF-8, which no text can contain, is empty."""
    with suppress(UnicodeDecodeError):
        lines = b"\n".join(merges).decode().split("\n") if merges else []
        if len(lines) == len(merges):
            return lines
    return [merge.decode() if is_utf8(merge) else "" for merge in merges]


def _pairs(merges: list[bytes]) -> list[tuple[str, str]]:
    """Merges as pairs of spellings, without duplicates and malformed ones, which can never apply."""
    lines = decode_lines(merges)
    pairs = [line.partition(" ")[::2] for line in lines]
    if all(map(all, pairs)) and len(set(merges)) == len(merges):
        return pairs
    cuts = [(line, line.find(" ", 1)) for line in lines]
    split_late = [(line[:cut], line[cut + 1 :]) for line, cut in cuts if cut > 0]
    return list(dict.fromkeys(pair for pair in split_late if all(pair)))
