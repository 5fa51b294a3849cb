"""The stream of events of one generation: a scheduler with one request, read event by event."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import TracebackType

from llmgen.engine.events import Ending, GenerationEvent, GenerationResult
from llmgen.engine.request_state import RequestState
from llmgen.engine.requests import Output
from llmgen.engine.scheduler import Scheduler
from llmgen.engine.stopping import attach_result
from llmgen.errors import LLMGenError

Callback = Callable[[GenerationEvent], object]


class GenerationStream(Iterator[GenerationEvent]):
    """The events of one generation.

    Leaving a loop over it early, closing it, or dropping it stops the work and
    frees the session.  Ctrl-C during the work raises KeyboardInterrupt, and an
    error is raised, too; ``result`` then holds what there was before it, with
    finish_reason ``interrupted``, and so does the ``result`` of KeyboardInterrupt.
    The next generation of its session ends it, too; reading further from it
    then raises an error.  If Ctrl-C comes between two events, in the caller's own code, :meth:`close`
    gives the stream its result, and so does leaving a ``with`` block.
    """

    def __init__(self, scheduler: Scheduler, state: RequestState, callback: Callback | None = None) -> None:
        """``scheduler``: one of this stream's own, which is to work on ``state``."""
        self._scheduler = scheduler
        self._state = state
        self._callback = callback
        self._outputs: list[Output] = []
        self._result: GenerationResult | None = None
        self._given = ""
        self._superseded: str | None = None
        self._on_end: list[Callable[[], None]] = []
        self._in_step = threading.Lock()  # held while an event is made
        scheduler.start(state)

    @property
    def result(self) -> GenerationResult | None:
        """The result, once the generation has ended in whatever way."""
        return self._result

    @property
    def text(self) -> str:
        """The text so far, as given out in events; in the end all of it.

        The work may be a step ahead: the last token's event and the last event come of one step.
        """
        return self._given if self._result is None else self._result.text

    def run(self) -> GenerationResult:
        """Run to the end.  KeyboardInterrupt brings the result so far as its ``result``."""
        try:
            for _ in self:
                pass
        except KeyboardInterrupt as error:  # in a step, or between two
            self._interrupted(error)
            raise
        assert self._result is not None
        return self._result

    def close(self, by: str | None = None) -> bool:
        """Stop the work; finish_reason becomes ``interrupted`` where it had not ended.

        Returns False where another thread is in the middle of a step: it will
        end at once, but has not yet.

        ``by`` names what else the session is to do.  Whoever goes on reading an answer
        that was not complete gets an error then; in the middle of a step nothing is done.
        """
        if not self._in_step.acquire(blocking=False):
            if by is None:
                self._scheduler.cancel(self._state.request, Ending("interrupted", "closed"))
            return False
        try:
            if by is not None and self._state.open:
                self._superseded = (
                    f"this answer was ended before it was complete by {by} in the same session: close the"
                    " stream first, or use a fork of the session for answers side by side"
                )
            self._finish(Ending("interrupted", "closed" if by is None else "superseded"))
        finally:
            self._in_step.release()
        return True

    def on_end(self, action: Callable[[], None]) -> None:
        """Call this once, when the generation has ended in whatever way."""
        self._on_end.append(action)

    def __next__(self) -> GenerationEvent:
        if not self._in_step.acquire(blocking=False):
            raise LLMGenError("this stream is in the middle of a step, in another thread or in a callback")
        try:
            return self._next()
        except StopIteration:
            raise
        except KeyboardInterrupt as error:
            self._finish(Ending("interrupted", "keyboard"))
            attach_result(error, self._result)
            raise
        except BaseException:
            self._finish(Ending("interrupted", "error"))
            raise
        finally:
            self._in_step.release()

    def _next(self) -> GenerationEvent:
        if self._result is not None:
            if self._superseded:
                raise LLMGenError(self._superseded)
            raise StopIteration
        while not self._outputs:
            self._outputs = self._scheduler.step()
        output = self._outputs.pop(0)
        assert output.event is not None
        if output.answer is not None:
            self._end(output.event)
            if output.answer.error is not None:
                raise output.answer.error
            return output.event
        self._given += output.event.text
        if self._tell(output.event):
            self._state.end(Ending("stop", "callback"))
        return output.event

    def __enter__(self) -> GenerationStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt) and self._result is None:
            self._interrupted(error)
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_in_step"):
            self.close()

    def _interrupted(self, error: KeyboardInterrupt) -> None:
        """End because of Ctrl-C, whose exception takes the result along."""
        self._finish(Ending("interrupted", "keyboard"))
        attach_result(error, self._result)

    def _finish(self, ending: Ending) -> None:
        """End the work with what there is, unless it has ended, and give the last event to the callback."""
        if self._result is not None:
            return
        outputs = [*self._outputs, *self._scheduler.abort(ending)]
        last = next((output.event for output in outputs if output.answer), None)
        self._end(last or self._state.last_event())

    def _end(self, last: GenerationEvent) -> None:
        self._scheduler.close()
        self._result = last.result
        while self._on_end:
            self._on_end.pop()()
        self._tell(last)

    def _tell(self, event: GenerationEvent) -> object:
        """Call the callback, but not after it raised an error."""
        callback, self._callback = self._callback, None
        if callback is None:
            return None
        answer = callback(event)
        self._callback = callback
        return answer
