"""What ends a generation from outside, and the text side of stop strings."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from llmgen.engine.events import Ending
from llmgen.engine.interfaces import ModelLike, TokenizerLike
from llmgen.tokenizer.stops import StopMatcher

_WATCH_EVERY_S = 0.05
_FIRST_MARK = 0xD800
_turns: WeakKeyDictionary[Any, threading.RLock] = WeakKeyDictionary()
_turns_guard = threading.Lock()


class Cancel(Protocol):
    """A cancel token: ``threading.Event``, or anything else with its ``is_set``."""

    def is_set(self) -> bool: ...


class Stops:
    """The stop strings of an answer, as they are looked for.

    Control tokens are never part of the text, but a stop string may spell them.  So there is
    a *mark* in the place of each, a lone surrogate, which no decoded text holds; the letters
    are looked for too, since a model may write a spelling out.
    """

    def __init__(self, stops: Sequence[str], tokenizer: TokenizerLike | None) -> None:
        self._given = {stop: stop for stop in stops}
        self._marks: dict[int, str] = {}
        for stop in stops if tokenizer else ():
            parts = tokenizer.cut_control(stop) if tokenizer else []
            self._given.setdefault("".join(self._mark(p) if isinstance(p, int) else p for p in parts), stop)
        self._invisible = dict.fromkeys(map(ord, self._marks.values()))

    def _mark(self, token: int) -> str:
        return self._marks.setdefault(token, chr(_FIRST_MARK + len(self._marks)))

    def matcher(self) -> StopMatcher | None:
        """A new matcher, or None where there is nothing to look for."""
        return StopMatcher(list(self._given)) if self._given else None

    def mark(self, token: int) -> str:
        """What the matcher is to see of a token beside its text."""
        return self._marks.get(token, "")

    def shown(self, text: str) -> str:
        """What the matcher let through, without marks."""
        return text.translate(self._invisible) if self._invisible else text

    def given(self, found: str | None) -> str | None:
        """The stop string, as it was given, of one that the matcher found."""
        return None if found is None else self._given[found]


class AnswerText:
    """Tokens to text that can be shown: whole characters, and no part of a stop string."""

    def __init__(self, tokenizer: TokenizerLike | None, stops: Stops) -> None:
        self.text = ""
        self.stopped = False
        self._n_vocab = tokenizer.n_vocab if tokenizer else 0
        self._decoder = tokenizer.stream_decoder(skip_special=True, continuation=True) if tokenizer else None
        self._stops = stops
        self._matcher = stops.matcher()
        self._finished = False

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text."""
        return self._stops.given(self._matcher.stopped_by) if self._matcher else None

    def push(self, token: int) -> str:
        """The text to show now that this token is there."""
        if self._decoder is None or token >= self._n_vocab:  # a model may have more rows than words
            return ""
        return self._add(self._stops.mark(token) + self._decoder.push(token))

    def finish(self) -> str:
        """The text that was held back; nothing comes after it."""
        if self._finished or not self._decoder or self.stopped:
            return ""
        self._finished = True
        shown = self._add(self._decoder.finish())
        if self._matcher and not self.stopped:
            rest = self._stops.shown(self._matcher.finish())
            self.text += rest
            shown += rest
        return shown

    def _add(self, text: str) -> str:
        if self._matcher:
            text, self.stopped = self._matcher.push(text)
            text = self._stops.shown(text)
        self.text += text
        return text


class Interruptible:
    """The model calls of one generation, and what may cut them short: cancel token, timeout, close.

    Between two tokens the loop asks :meth:`due` itself.  During a call a thread
    looks 20 times a second and stops the model where it must; it exists only
    where there is something to look for.  Generations that share a model take
    turns, so that none stops the work of another.
    """

    def __init__(self, model: ModelLike, cancel: Cancel | None, timeout: float | None) -> None:
        self._model = model
        self._cancel = cancel
        self._timeout = timeout
        self._deadline: float | None = None
        self._closing = False
        self._running = False
        self._guard = threading.Lock()
        self._finished = threading.Event()
        self._watcher: threading.Thread | None = None

    def start(self) -> None:
        """Start the clock of the timeout, and the watching."""
        if self._timeout is not None:
            self._deadline = time.monotonic() + self._timeout
        if self._cancel is not None or self._timeout is not None:
            self._start_watching()

    def due(self) -> Ending | None:
        """Why to stop now, or None."""
        if self._closing:
            return Ending("interrupted", "closed")
        if self._cancel is not None and self._cancel.is_set():
            return Ending("interrupted", "cancel")
        if self._deadline is not None and time.monotonic() >= self._deadline:
            return Ending("timeout", "timeout")
        return None

    def call(self, work: Callable[..., Any], *args: Any) -> Any:
        """Run a model call in this model's turn; it may end with ``Interrupted``."""
        with turn(self._model), self._in_call():
            return work(*args)

    def interrupt(self) -> None:
        """Stop from another thread, as if by a cancel token."""
        self._closing = True
        # watched, not said once: a stop that comes just before the model begins is forgotten there
        self._start_watching()

    def finish(self) -> None:
        """End the watching."""
        self._finished.set()

    @contextmanager
    def _in_call(self) -> Iterator[None]:
        with self._guard:
            self._running = True
        try:
            yield
        finally:
            with self._guard:
                self._running = False

    def _start_watching(self) -> None:
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="llmgen-watch", daemon=True)
            self._watcher.start()

    def _watch(self) -> None:
        while not self._finished.is_set():
            with self._guard:
                if self._running and self.due():
                    self._model.cancel()
            self._finished.wait(_WATCH_EVERY_S)


def keep_result(error: KeyboardInterrupt, result: object) -> None:
    """Let the exception of Ctrl-C carry what there is so far, as its ``result``."""
    error.result = result  # type: ignore[attr-defined]


def turn(model: ModelLike) -> threading.RLock:
    """The lock under which a model's calls are made, and the memory they use is given back."""
    with _turns_guard:
        return _turns.setdefault(model, threading.RLock())


def _renew_locks() -> None:
    """In a forked child: a thread that held a lock did not come along."""
    global _turns_guard
    _turns_guard = threading.Lock()
    _turns.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
