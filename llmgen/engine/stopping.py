"""What ends a request from outside: a cancel token, a timeout, being closed.

Between two model calls the caller asks :meth:`Watchdog.due`.  During a call one thread, shared by
all watchdogs, checks 20 times a second and stops calls that must not continue.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol
from weakref import WeakSet

from llmgen.engine.events import Ending
from llmgen.engine.interfaces import ModelLike
from llmgen.errors import UsageError, kind_of

_LOOK_EVERY_S = 0.05


class Cancel(Protocol):
    """A cancel token: ``threading.Event``, or anything else with its ``is_set``."""

    def is_set(self) -> bool: ...


def checked_cancel(cancel: Cancel | None) -> Cancel | None:
    """The cancel token.  Raises UsageError for what is none."""
    if cancel is None or not isinstance(cancel, type) and callable(getattr(cancel, "is_set", None)):
        return cancel
    raise UsageError(f"cancel must be a threading.Event or have its is_set(), not {kind_of(cancel)}")


class Limits:
    """What may end one request early: its timeout, counted from :meth:`start`, and cancellation."""

    def __init__(self, timeout: float | None = None) -> None:
        self.cancelled: Ending | None = None
        self.deadline: float | None = None
        self._timeout = timeout

    def start(self) -> None:
        """Start the clock, unless it is running already."""
        if self._timeout is not None and self.deadline is None:
            self.deadline = time.monotonic() + self._timeout

    def due(self) -> Ending | None:
        """Why the request has to end now, or None."""
        if self.cancelled is not None:
            return self.cancelled
        if self.deadline is not None and time.monotonic() >= self.deadline:
            return Ending("timeout", "timeout")
        return None


class Watchdog:
    """Makes the model calls of some requests, and stops a call when every request in it has to end.

    Its users share the model with others: each call holds the model's lock, so that none
    stops the work of another.
    """

    def __init__(self, model: ModelLike, cancel: Cancel | None = None) -> None:
        """``cancel``: a token that ends all of the requests."""
        self.closed = False
        self._model = model
        self._cancel = checked_cancel(cancel)
        self._running = model
        self.renew()

    def renew(self) -> None:
        """No call is running, nor is one in a forked child, whatever other threads of the parent were doing."""
        self._in_call: Sequence[Limits] = ()
        self._guard = threading.Lock()

    def start(self, limits: Limits) -> None:
        """Start a request's clock, and watch its calls if anything may end them."""
        limits.start()
        if self._cancel is not None or limits.deadline is not None:
            _watch.add(self)

    def end(self, limits: Limits, ending: Ending) -> None:
        """End a request, from any thread: at once if it is alone in a call, else before its next call."""
        limits.cancelled = ending
        # watched, not stopped here: a model forgets what came just before a call begins
        _watch.add(self)

    @property
    def cancelled(self) -> bool:
        """Whether the cancel token is set."""
        return self._cancel is not None and self._cancel.is_set()

    def due(self, limits: Limits) -> Ending | None:
        """Why a request has to end now, or None."""
        if self.cancelled:
            return Ending("interrupted", "cancel")
        return limits.due()

    def call(
        self,
        limits: Sequence[Limits],
        work: Callable[..., Any],
        *args: Any,
        model: ModelLike | None = None,
    ) -> Any:
        """Run a call of the model, or of another one beside it, for the requests with these limits.

        May raise Interrupted.
        """
        with self._model.lock:
            with self._guard:
                self._in_call, self._running = limits, model or self._model
            try:
                return work(*args)
            finally:
                with self._guard:
                    self._in_call = ()

    def stop_if_due(self) -> None:
        """Stop the running call if all requests in it have to end; called by the watching thread."""
        with self._guard:
            if self._in_call and all(self.due(limits) for limits in self._in_call):
                self._running.cancel()

    def close(self) -> None:
        """No call will follow, so stop watching."""
        self.closed = True


class _Watch:
    """The thread that looks after all watchdogs; it starts with the first one that needs it."""

    def __init__(self) -> None:
        self._watchdogs: WeakSet[Watchdog] = WeakSet()
        self.renew()

    def renew(self) -> None:
        """Also in a forked child: neither the thread nor whoever held the lock came along."""
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        for watchdog in list(self._watchdogs):
            watchdog.renew()

    def add(self, watchdog: Watchdog) -> None:
        with self._changed:
            self._watchdogs.add(watchdog)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="llmgen-watch", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            self._look()
            with self._changed:
                self._changed.wait(_LOOK_EVERY_S if self._watchdogs else None)

    def _look(self) -> None:
        with self._changed:
            found = [watchdog for watchdog in self._watchdogs if not watchdog.closed]
            self._watchdogs = WeakSet(found)
        for watchdog in found:
            with suppress(Exception):  # of a caller's cancel token; the caller gets it between two calls
                watchdog.stop_if_due()


_watch = _Watch()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_watch.renew)


def attach_result(error: KeyboardInterrupt, result: object) -> None:
    """Attach the result so far to the exception of Ctrl-C, as its ``result``."""
    error.result = result  # type: ignore[attr-defined]
