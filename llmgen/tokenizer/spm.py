"""SentencePiece BPE: merges of neighbouring characters, the best-scored token first.

The ``sentencepiece`` library does the merging.  It is given the vocabulary as the model
file it expects, written here by hand (sentencepiece_model.proto in its repository): every
token as a normal piece, since llama.cpp, whose ids we reproduce, lets merges end in any
token, with the 256 bytes as a fallback for characters without a token.
"""

from __future__ import annotations

from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from llmgen.errors import TokenizerError
from llmgen.tokenizer.vocab import BYTE_SPELLINGS, Vocabulary

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

SPACE = "\u2581"
"""The spelling of a space in these vocabularies."""

# Field numbers and types of sentencepiece_model.proto, as protobuf tags.
_MODEL_PIECES, _MODEL_TRAINER, _MODEL_NORMALIZER = b"\x0a", b"\x12", b"\x1a"
_PIECE_TEXT, _PIECE_SCORE, _PIECE_TYPE = b"\x0a", b"\x15", b"\x18"
_TYPE_UNKNOWN, _TYPE_BYTE = b"\x02", b"\x06"
_TRAINER_BPE = b"\x18\x02"
_TRAINER_BYTE_FALLBACK = b"\x98\x02\x01"
_TRAINER_NO_BYTE_FALLBACK = b"\x98\x02\x00"
# No dummy prefix, no removal of spaces, no escaping: the text arrives ready.
_NORMALIZER_AS_IS = b"\x18\x00\x20\x00\x28\x00"


_LONGEST = 2048
"""Bytes in a token; the longest known one has 93."""


class ScoredMergeModel:
    """Encodes plain text; special tokens are found before it comes here."""

    def __init__(self, vocab: Vocabulary, unknown_id: int | None) -> None:
        """``unknown_id`` replaces a character that neither a token nor bytes can spell."""
        self._vocab = vocab
        self._bytes = vocab.byte_ids()
        self._unknown = [] if unknown_id is None else [unknown_id]

    def encode(self, text: str) -> list[int]:
        """The token ids of a text; no space is added in front."""
        ids: list[int] = self._processor.EncodeAsIds(text.replace(" ", SPACE))
        n_vocab = len(self._vocab)
        if None not in self._bytes or max(ids, default=0) < n_vocab:
            return ids
        return [real for id in ids for real in ([id] if id < n_vocab else self._unknown)]

    @cached_property
    def _processor(self) -> SentencePieceProcessor:
        """The library's model, made when a text is first encoded."""
        from sentencepiece import SentencePieceProcessor

        processor = SentencePieceProcessor()
        try:
            processor.LoadFromSerializedProto(model_proto(self._vocab, self._bytes))
        except Exception as error:
            raise TokenizerError(
                f"the vocabulary cannot be loaded ({error}); "
                "convert the model again, or get it from elsewhere"
            ) from error
        return processor


def model_proto(vocab: Vocabulary, byte_ids: list[int | None]) -> bytes:
    """The vocabulary as a serialized ModelProto.

    After the last token comes an unknown piece, and if only some bytes have a token, a piece
    for each of the others, since the library takes all of them or none.
    """
    has_bytes = any(id is not None for id in byte_ids)
    texts = _unique(vocab)
    tails = _scores(vocab)
    n_tail = len(_PIECE_SCORE) + 4
    heads = [_head(n_text, n_tail) for n_text in range(max(map(len, texts)) + 1)]
    pieces = list(map(heads.__getitem__, map(len, texts)))
    if has_bytes:
        for id in (id for id in byte_ids if id is not None):
            tails[id] += _PIECE_TYPE + _TYPE_BYTE
            pieces[id] = _head(len(texts[id]), len(tails[id]))
    missing = [text for text, id in zip(BYTE_SPELLINGS, byte_ids, strict=True) if id is None and has_bytes]
    trainer = _TRAINER_BPE + (_TRAINER_BYTE_FALLBACK if has_bytes else _TRAINER_NO_BYTE_FALLBACK)
    return b"".join(
        [
            *chain.from_iterable(zip(pieces, texts, tails, strict=True)),
            _piece(b"\xff<unknown>", _TYPE_UNKNOWN),  # a spelling that no text has
            *(_piece(text, _TYPE_BYTE) for text in missing),
            _MODEL_TRAINER + _varint(len(trainer)) + trainer,
            _MODEL_NORMALIZER + _varint(len(_NORMALIZER_AS_IS)) + _NORMALIZER_AS_IS,
        ]
    )


def _scores(vocab: Vocabulary) -> list[bytes]:
    """The score field of every piece."""
    n = len(vocab)
    fields = np.empty((n, len(_PIECE_SCORE) + 4), np.uint8)
    fields[:, 0] = _PIECE_SCORE[0]
    scores = vocab.scores if vocab.scores is not None else np.zeros(n, np.float32)
    fields[:, 1:] = scores.astype("<f4").view(np.uint8).reshape(n, 4)
    # As opaque values of five bytes, which numpy hands out as bytes objects.
    return fields.view("V5").ravel().tolist()


def _unique(vocab: Vocabulary) -> list[bytes]:
    """The spellings; a duplicate, or one that the library refuses, becomes one that no text contains."""
    raw, ids = vocab.raw, vocab.ids
    if not (vocab.has_duplicates or max(map(len, raw)) > _LONGEST or b"\0" in b"".join(raw)):
        return raw
    return [
        text if ids.get(text) == id and len(text) <= _LONGEST and b"\0" not in text else b"\xff%d" % id
        for id, text in enumerate(raw)
    ]


def _piece(text: bytes, kind: bytes) -> bytes:
    """A whole piece with the score 0."""
    tail = _PIECE_SCORE + bytes(4) + _PIECE_TYPE + kind
    return _head(len(text), len(tail)) + text + tail


def _head(n_text: int, n_tail: int) -> bytes:
    """The bytes before a piece's text."""
    text_head = _PIECE_TEXT + _varint(n_text)
    return _MODEL_PIECES + _varint(len(text_head) + n_text + n_tail) + text_head


def _varint(number: int) -> bytes:
    """A number in protobuf's base 128."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
