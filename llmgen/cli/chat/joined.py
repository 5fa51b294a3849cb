"""An answer in several parts, any of which may end in the middle of a character."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmgen.engine import GenerationEvent, GenerationResult, GenerationStream
    from llmgen.tokenizer import Tokenizer


class JoinedStream:
    """A stream whose text has only whole characters.

    A character that is incomplete when a limit or an interruption ends the answer is left
    out, and ``pending`` holds the tokens of its beginning.  With those, the stream of the
    continuation begins with that character, so that the joined texts of all parts are the
    text of all their tokens.
    """

    def __init__(self, stream: GenerationStream, tokenizer: Tokenizer, pending: Sequence[int] = ()) -> None:
        self._stream = stream
        self._n_vocab = tokenizer.n_vocab
        self._alone = tokenizer.stream_decoder(skip_special=True, continuation=True)
        self._joined = tokenizer.stream_decoder(skip_special=True, continuation=True)
        for token in pending:  # characters that these complete belong to the previous part
            self._joined.push(token)
        self._recent = list(pending)  # the last token that completed a character, and those after it
        self._in_step = not pending
        self._broken = ""  # what the stream gives for the rest of a character ...
        self._whole = ""  # ... and the character itself
        self._tail: str | None = None
        self._result: GenerationResult | None = None

    @property
    def result(self) -> GenerationResult | None:
        """The result, once the generation has ended."""
        if self._result is None and self._stream.result is not None:
            self._finish(self._stream.result)
        return self._result

    @property
    def text(self) -> str:
        """The text so far."""
        return self._result.text if self._result else self._so_far(self._stream.text)

    @property
    def pending(self) -> list[int]:
        """The tokens of an incomplete character at the end, and perhaps one token before them."""
        return self._recent if self.result and self._tail and self.result.finish_reason != "stop" else []

    def __iter__(self) -> Iterator[GenerationEvent]:
        shown = 0
        for event in self._stream:
            if event.token_id is not None:
                self._push(event.token_id)
            text = self.text if event.result is None else self._finish(event.result).text
            yield replace(event, text=text[shown:], result=self._result)
            shown = len(text)

    def close(self) -> None:
        """Stop the work."""
        self._stream.close()

    def _push(self, token: int) -> None:
        if token >= self._n_vocab:  # a model may have more logits than the vocabulary has tokens
            return
        whole, broken = self._joined.push(token), self._alone.push(token)
        self._recent = [token] if whole else [*self._recent, token]
        if not self._in_step:
            self._whole += whole
            self._broken += broken
            self._in_step = bool(whole)

    def _so_far(self, text: str) -> str:
        return self._whole + text[len(self._broken) :] if self._in_step else ""

    def _finish(self, result: GenerationResult) -> GenerationResult:
        """The result, its text reduced to whole characters."""
        if self._result is None:
            self._tail, tail = self._joined.finish(), self._alone.finish()
            text = self._so_far(result.text)
            if result.finish_reason != "stop":
                text = text.removesuffix(tail) if self._in_step else ""
            elif not self._in_step:
                text = self._tail
            self._result = replace(result, text=text)
        return self._result
