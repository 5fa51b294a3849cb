"""Byte pair encoding: ranked merges within the pieces that a pre-tokenizer cut."""

from __future__ import annotations

import threading
from functools import cached_property

from llmgen.tokenizer.merging import LibraryMerger, Merger, PlainMerger
from llmgen.tokenizer.pretokenize import pretokenize
from llmgen.tokenizer.pretokenizers import PreTokenizer
from llmgen.tokenizer.unicode import is_utf8
from llmgen.tokenizer.vocab import Vocabulary

_SHORT = 4096
"""Characters up to which Python merges faster than the library can be built."""


def _byte_alphabet() -> dict[int, int]:
    """GPT-2's spelling of the 256 bytes: printable ones are themselves.

    The others become U+0100 onwards, in order (encoder.py in OpenAI's gpt-2 repository).
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
        if not pre.byte_level:
            vocab.byte_ids()  # warns of gaps
        self._plain: PlainMerger | None = None
        self._library: LibraryMerger | None = None
        self._lock = threading.Lock()

    def encode(self, text: str) -> list[int]:
        """The token ids of a text.  Bytes without a token are dropped."""
        if not self._pre.byte_level:
            text = text.replace(" ", "\u2581")
        pieces = pretokenize(text, self._pre)
        if self._pre.byte_level:
            pieces = [spell_bytes(piece) for piece in pieces]
        merger = self._merger(sum(map(len, pieces)))
        if self._pre.ignore_merges or self._pre.newline_runs:
            return self._merge_unless_whole(pieces, merger)
        return merger.encode(pieces)

    def _merge_unless_whole(self, pieces: list[str], merger: Merger) -> list[int]:
        """Merge only the pieces that are not tokens themselves."""
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
                out += merger.encode(waiting)
                waiting = []
            out.append(whole)
        return out + merger.encode(waiting) if waiting else out

    def _merger(self, size: int) -> Merger:
        """The merger for a text of ``size`` characters; from the first long text on, the library."""
        library = self._library
        if library is not None:
            return library
        with self._lock:
            if self._library is not None:
                return self._library
            if size <= _SHORT:
                if self._plain is None:
                    self._plain = PlainMerger(self._ids, self._merges, self._spell_out)
                return self._plain
            self._plain = None  # its ranks take as much memory as the library's input
            self._library = LibraryMerger(
                self._ids, self._merges, self._spell_out, len(self._vocab), *self._smallest()
            )
            # tens of megabytes for a large vocabulary, not needed any more
            self._merges = []
            return self._library

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
        return {text.decode(): id for text, id in self._vocab.ids.items() if is_utf8(text)}

    def _smallest(self) -> tuple[list[str], bool]:
        """The spellings of bytes, and whether a character without a token falls back to its bytes."""
        if self._pre.byte_level:
            return list(CHAR_TO_BYTE), False
        return [f"<0x{byte:02X}>" for byte in range(256)], True

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
