"""The bytes that a token prints as."""

from __future__ import annotations

import re

from llmgen.tokenizer.bpe import unspell_bytes
from llmgen.tokenizer.rwkv import unescape
from llmgen.tokenizer.spm import SPACE
from llmgen.tokenizer.vocab import TokenType, Vocabulary

_BYTE = re.compile(rb"<0x([0-9A-Fa-f]{2})>\Z")
_SPACE = SPACE.encode()


def piece_bytes(vocab: Vocabulary, id: int, byte_level: bool) -> bytes:
    """The bytes of token ``id``; those of one token need not be whole characters.

    Special tokens print as their spelling; unused ones print nothing.  ``byte_level``:
    normal tokens are in GPT-2's byte alphabet.
    """
    raw = vocab.raw[id]
    if vocab.kind == "rwkv":
        return unescape(raw)
    # as a plain int: numpy inspects an enum through Python code and swallows any exception raised there,
    # KeyboardInterrupt too
    match int(vocab.types[id]):
        case TokenType.CONTROL | TokenType.UNKNOWN | TokenType.USER_DEFINED:
            return raw
        case TokenType.BYTE:
            spelled = _BYTE.match(raw)
            return bytes([int(spelled.group(1), 16)]) if spelled else raw
        case TokenType.NORMAL if vocab.kind == "plamo2":
            return raw
        case TokenType.NORMAL if byte_level:
            return unspell_bytes(raw.decode("utf-8", "surrogateescape"))
        case TokenType.NORMAL:
            return raw.replace(_SPACE, b" ")
    return b""
