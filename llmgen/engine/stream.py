"""The generation loop, and the stream of events it gives."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from typing import cast

import numpy as np
from numpy.typing import NDArray

from llmgen.engine.cached import CachedTokens, OnPrompt, Reuse
from llmgen.engine.events import Ending, GenerationEvent, GenerationResult
from llmgen.engine.stopping import Interruptible, keep_result
from llmgen.engine.writer import Writer
from llmgen.errors import Interrupted, LLMGenError

Callback = Callable[[GenerationEvent], object]


class _Told:
    """The callback of a stream, where there is one: called with each event, but not after it raised an error."""

    def __init__(self, callback: Callback | None) -> None:
        self._callback = callback

    def __call__(self, event: GenerationEvent) -> object:
        callback, self._callback = self._callback, None
        if callback is None:
            return None
        answer = callback(event)
        self._callback = callback
        return answer


def generate_events(
    cache: CachedTokens,
    ids: list[int],
    reuse: Reuse,
    writer: Writer,
    calls: Interruptible,
    told: Callback,
    on_prompt: OnPrompt | None = None,
) -> Generator[GenerationEvent, None, None]:
    """The loop: the prompt, then token by token until ``writer.ending`` is set; then a look at the model's file."""
    writer.start()
    calls.start()
    logits = _prompt(cache, ids, reuse, writer, calls, on_prompt)
    yield from _tokens(logits, cache, writer, calls, told)
    cache.model.check_file()


def _tokens(
    logits: NDArray[np.float32] | None,
    cache: CachedTokens,
    writer: Writer,
    calls: Interruptible,
    told: Callback,
) -> Generator[GenerationEvent, None, None]:
    while writer.ending is None:
        event = writer.step(cast("NDArray[np.float32]", logits))
        if event is None:
            return
        cache.tokens.append(cast(int, event.token_id))  # however the answer ends, this token is part of it
        if told(event) and writer.ending is None:
            writer.ending = Ending("stop", "callback")
        yield event
        writer.ending = writer.ending or calls.due() or make_room(cache, writer, calls)
        if writer.ending is None:
            started = time.perf_counter()
            logits = cache.decode(calls)
            writer.count_decode(time.perf_counter() - started)


def _prompt(
    cache: CachedTokens,
    ids: list[int],
    reuse: Reuse,
    writer: Writer,
    calls: Interruptible,
    on_prompt: OnPrompt | None,
) -> NDArray[np.float32] | None:
    started = time.perf_counter()
    writer.cached_tokens = calls.call(cache.begin, ids, reuse)  # in turn: somebody may be forking the session
    try:
        return cache.prefill(calls, "none" if writer.ending else "last", on_prompt=on_prompt)
    finally:
        writer.prefill_tokens = cache.cached - writer.cached_tokens  # an interruption may leave some out
        writer.prefill_s = time.perf_counter() - started


def make_room(cache: CachedTokens, writer: Writer, calls: Interruptible) -> Ending | None:
    """Apply the policy for a full context: an ending, or None where there is room now.

    To be called when only the last token, a generated one, is still to be computed.
    """
    if cache.seq.length < cache.model.n_ctx:
        return None
    if writer.params.context_full == "stop":
        return Ending("length", "context_full")
    started = time.perf_counter()
    calls.call(cache.shift, writer.context_keep)
    cache.prefill(calls, "none", at_most=cache.n_missing - 1)
    writer.decode_s += time.perf_counter() - started
    return None


class GenerationStream(Iterator[GenerationEvent]):
    """The events of one generation.

    Leaving a loop over it early, closing it, or dropping it stops the work and
    frees the session.  Ctrl-C during the work raises KeyboardInterrupt, and an
    error raises, too; ``result`` then holds what there was before it, with
    finish_reason ``interrupted``, and so does the ``result`` of KeyboardInterrupt.
    The next generation of its session ends it, too; whoever then goes on reading
    gets an error.  Where Ctrl-C comes between two events, in the caller's own code, :meth:`close`
    gives the stream its result; leaving a ``with`` block does that, too.
    """

    def __init__(
        self,
        cache: CachedTokens,
        ids: list[int],
        reuse: Reuse,
        writer: Writer,
        calls: Interruptible,
        callback: Callback | None = None,
        on_prompt: OnPrompt | None = None,
    ) -> None:
        self._writer = writer
        self._calls = calls
        self._told = _Told(callback)
        self._superseded: str | None = None
        self._on_end: list[Callable[[], None]] = []
        # a function, not a method: no cycle, so that dropping the stream ends it at once
        self._events = generate_events(cache, ids, reuse, writer, calls, self._told, on_prompt)

    @property
    def result(self) -> GenerationResult | None:
        """The result, once the generation has ended in whatever way."""
        return self._writer.result

    @property
    def text(self) -> str:
        """The text so far, as given out in events."""
        return self._writer.text

    def run(self) -> GenerationResult:
        """Run to the end.  KeyboardInterrupt brings the result so far as its ``result``."""
        try:
            for _ in self:
                pass
        except KeyboardInterrupt as error:  # in a step, or between two
            self._interrupted(error)
            raise
        assert self.result is not None
        return self.result

    def close(self, by: str | None = None) -> bool:
        """Stop the work; finish_reason becomes ``interrupted`` where it had not ended.

        Returns False where another thread is in the middle of a step: it will
        end at once, but has not yet.

        ``by`` names what else the session is to do.  Whoever goes on reading an answer
        that was not complete gets an error then; in the middle of a step nothing is done.
        """
        if by is None:
            return self._close(Ending("interrupted", "closed"))
        if inspect.getgeneratorstate(self._events) == inspect.GEN_RUNNING:
            return False
        if self.result is None:
            self._superseded = (
                f"this answer was ended before it was complete by {by} in the same session: close the"
                " stream first, or use a fork of the session for answers side by side"
            )
        return self._close(Ending("interrupted", "superseded"))

    def _close(self, ending: Ending) -> bool:
        try:
            self._events.close()
        except ValueError:
            self._calls.interrupt()
            return False
        self._end(ending)
        return True

    def on_end(self, action: Callable[[], None]) -> None:
        """Call this once, when the generation has ended in whatever way."""
        self._on_end.append(action)

    def __next__(self) -> GenerationEvent:
        if self.result is not None:
            if self._superseded:
                raise LLMGenError(self._superseded)
            raise StopIteration
        try:
            return next(self._events)
        except StopIteration:
            ending = self._writer.ending or Ending("interrupted", "closed")
        except KeyboardInterrupt as error:
            self._interrupted(error)
            raise
        except Interrupted:
            ending = self._calls.due() or Ending("interrupted", "cancel")
        except BaseException:
            self._end(Ending("interrupted", "error"))
            raise
        return self._end(ending)

    def __enter__(self) -> GenerationStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt) and self.result is None:
            self._close(Ending("interrupted", "keyboard"))
            keep_result(error, self.result)
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_events"):
            self.close()

    def _interrupted(self, error: KeyboardInterrupt) -> None:
        """End because of Ctrl-C, whose exception takes the result along."""
        self._end(Ending("interrupted", "keyboard"))
        keep_result(error, self.result)

    def _end(self, ending: Ending) -> GenerationEvent:
        if self.result is not None:
            return GenerationEvent("", None, result=self.result)
        self._calls.finish()
        event = self._writer.end(ending)
        while self._on_end:
            self._on_end.pop()()
        self._told(event)
        return event
