"""Byte pair encoding: ranked merges of the pieces that a pre-tokenizer cut.

The merging itself is done by the ``tokenizers`` library.  It knows only merges of tokens
into tokens; llama.cpp, whose ids we reproduce, merges spellings, and looks at the end
which of them are tokens.  So spellings that only merges name get *phantom* ids past the
end of the vocabulary, and what is left of them in the result is spelled out in bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from llmgen.errors import TokenizerError
from llmgen.tokenizer.pretokens import PreTokenizer
from llmgen.tokenizer.split import split
from llmgen.tokenizer.vocab import Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Merger


def _byte_alphabet() -> dict[int, int]:
    """GPT-2's spelling of the 256 bytes: printable ones stand for themselves.

    The others are U+0100 onwards, in order (encoder.py in OpenAI's gpt-2 repository).
    """
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return {byte: byte if byte in plain else next(spare) for byte in range(256)}


BYTE_TO_CHAR = _byte_alphabet()
CHAR_TO_BYTE = {chr(char): byte for byte, char in BYTE_TO_CHAR.items()}


def spell_bytes(piece: str) -> str:
    """A piece of text in GPT-2's byte alphabet."""
    return piece.encode().decode("latin-1").translate(BYTE_TO_CHAR)


def unspell_bytes(spelling: str) -> bytes:
    """The bytes that a token's spelling stands for; a character outside the alphabet is itself."""
    try:
        return bytes([CHAR_TO_BYTE[char] for char in spelling])
    except KeyError:
        return b"".join(
            bytes([CHAR_TO_BYTE[char]]) if char in CHAR_TO_BYTE else char.encode("utf-8", "surrogateescape")
            for char in spelling
        )


class BytePairModel:
    """Encodes plain text; special tokens are found before it comes here."""

    def __init__(self, vocab: Vocabulary, merges: list[bytes], pre: PreTokenizer) -> None:
        """``merges``: pairs of spellings with a space between, the best first."""
        self._vocab = vocab
        self._merges = merges
        self._pre = pre
        self._phantoms: dict[int, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """The token ids of a text.  Bytes for which there is no token are dropped."""
        if not self._pre.byte_level:
            text = text.replace(" ", "\u2581")
        pieces = split(text, self._pre)
        if self._pre.byte_level:
            pieces = [spell_bytes(piece) for piece in pieces]
        if not (self._pre.ignore_merges or self._pre.newline_runs):
            return self._merge(pieces)
        return self._merge_unless_whole(pieces)

    def _merge_unless_whole(self, pieces: list[str]) -> list[int]:
        """Merge the pieces between those that are tokens as they stand."""
        ids = self._ids
        every = self._pre.ignore_merges
        out: list[int] = []
        waiting: list[str] = []
        for piece in pieces:
            whole = ids.get(piece) if every or piece[0] == "\n" else None
            if whole is None:
                waiting.append(piece)
                continue
            if waiting:
                out += self._merge(waiting)
                waiting = []
            out.append(whole)
        return out + self._merge(waiting) if waiting else out

    def _merge(self, pieces: list[str]) -> list[int]:
        ids: list[int] = self._merger.encode(pieces, is_pretokenized=True, add_special_tokens=False).ids
        if self._phantoms and max(ids, default=0) >= len(self._vocab):
            phantoms = self._phantoms
            return [real for id in ids for real in phantoms.get(id, (id,))]
        return ids

    @cached_property
    def _ids(self) -> dict[str, int]:
        """Spellings to ids; spellings that are not UTF-8 can never match a text, and are left out."""
        raw = self._vocab.raw
        try:
            texts = b"\0".join(raw).decode().split("\0")
            if len(texts) == len(raw):
                ids = dict(zip(texts, range(len(raw)), strict=True))
                ids.pop("", None)
                return ids
        except UnicodeDecodeError:
            pass
        return {text.decode(): id for text, id in self._vocab.ids.items() if _is_utf8(text)}

    @cached_property
    def _merger(self) -> Merger:
        """The library's model, made when a text is first encoded."""
        from tokenizers import Tokenizer as Merger
        from tokenizers.models import BPE

        pairs = _pairs(self._merges)
        self._merges = []  # tens of megabytes, and not needed again
        ids = dict(self._ids)
        self._add_phantoms(ids, self._smallest())
        fallback = not self._pre.byte_level
        try:
            return Merger(BPE(ids, pairs, byte_fallback=fallback))
        except Exception:
            # A merge names, or makes, what is no token; rare, and slow to look for.
            self._add_phantoms(ids, {*map("".join, pairs)}.union(*pairs))
        try:
            return Merger(BPE(ids, pairs, byte_fallback=fallback))
        except Exception as error:
            raise TokenizerError(
                f"the merges and the tokens of the vocabulary do not fit together ({error}); "
                "convert the model again, or get it from elsewhere"
            ) from error

    def _smallest(self) -> Iterable[str]:
        """The spellings that merging starts from, besides the characters of the tokens."""
        return CHAR_TO_BYTE if self._pre.byte_level else map("<0x{:02X}>".format, range(256))

    def _add_phantoms(self, ids: dict[str, int], met: Iterable[str]) -> None:
        """Give an id to every spelling that merging can meet, and note what to write instead."""
        for spelling in sorted(set(met).difference(ids)):
            id = len(self._vocab) + len(self._phantoms)
            self._phantoms[id] = self._spell_out(spelling)
            ids[spelling] = id

    def _spell_out(self, spelling: str) -> list[int]:
        """The tokens of the bytes of a spelling that is no token itself."""
        real = self._ids
        if self._pre.byte_level:
            # llama.cpp looks the bytes of the spelling up, not those it stands for: only
            # an ASCII character is found.
            names = [char for char in spelling if char.isascii()]
        elif len(spelling) == 6 and spelling.startswith("<0x"):
            names = []
        else:
            names = [f"<0x{byte:02X}>" for byte in spelling.encode()]
        return [real[name] for name in names if name in real]


def _pairs(merges: list[bytes]) -> list[tuple[str, str]]:
    """Merges as pairs of spellings, each pair once; the malformed, which can never apply, left out."""
    lines = b"\n".join(merges).decode("utf-8", "replace").split("\n")
    if len(lines) != len(merges):
        lines = [merge.decode("utf-8", "replace") for merge in merges]
    pairs = [line.partition(" ")[::2] for line in lines]
    if all(map(all, pairs)) and len(set(merges)) == len(merges):
        return pairs
    cuts = [(line, line.find(" ", 1)) for line in lines]
    split_late = [(line[:cut], line[cut + 1 :]) for line, cut in cuts if cut > 0]
    return list(dict.fromkeys(pair for pair in split_late if all(pair)))


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
