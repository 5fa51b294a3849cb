"""Answers in parts, cut at any token: texts that join to the text of all tokens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tiny
from llmgen import Tokenizer
from llmgen.cli.chat.joined import JoinedStream
from llmgen.engine import GenerationEvent, GenerationResult

BYTE = 3  # the token of byte 0; each byte is a token here


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_gguf(tiny.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


class Part:
    """One generation's stream, with text as the library gives it."""

    def __init__(self, tokenizer: Tokenizer, ids: list[int], finish_reason: str = "length") -> None:
        self._ids, self._reason = ids, finish_reason
        self._decoder = tokenizer.stream_decoder(skip_special=True, continuation=True)
        self.text = ""
        self.result: GenerationResult | None = None

    def __iter__(self) -> Iterator[GenerationEvent]:
        for id in self._ids:
            piece = self._decoder.push(id)
            self.text += piece
            yield GenerationEvent(piece, id)
        rest = self._decoder.finish()
        self.text += rest
        self.result = GenerationResult(self.text, tuple(self._ids), self._reason, 1, 0)  # type: ignore[arg-type]
        yield GenerationEvent(rest, None, result=self.result)


def told(
    tokenizer: Tokenizer, ids: list[int], pending: list[int], reason: str = "length"
) -> tuple[str, list[int]]:
    """The text of one part, shown piece by piece, and what it leaves pending."""
    stream = JoinedStream(Part(tokenizer, ids, reason), tokenizer, pending)  # type: ignore[arg-type]
    shown = "".join(event.text for event in stream)
    assert stream.result is not None
    assert shown == stream.text == stream.result.text
    return shown, stream.pending


def test_every_cut_of_every_character(tokenizer: Tokenizer) -> None:
    text = "a\u00e9\u65e5\U0001f389b"
    ids = [BYTE + byte for byte in text.encode()]
    for one in range(len(ids) + 1):
        for two in range(one, len(ids) + 1):
            shown, pending = "", []
            for part in (ids[:one], ids[one:two], ids[two:]):
                more, pending = told(tokenizer, part, pending)
                assert "\ufffd" not in more
                shown += more
            assert (shown, pending) == (text, [])


def test_what_never_becomes_a_character_is_told_at_the_end(tokenizer: Tokenizer) -> None:
    half = [BYTE + 0xE6, BYTE + 0x97]
    assert told(tokenizer, half, [], "stop") == ("\ufffd", [])
    assert told(tokenizer, half, []) == ("", half)
    assert told(tokenizer, [], half, "stop") == ("\ufffd", [])
    assert told(tokenizer, [BYTE + ord("x")], half) == ("\ufffdx", [])
