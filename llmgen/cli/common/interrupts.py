"""Ctrl-C, the same for every command, and the signals that ask a program to leave.

Before and after a command it ends the process.  While a command works it raises
KeyboardInterrupt; within :func:`noted` it only sets a cancel token.  A caller that
ignores Ctrl-C (nohup, a background job) or handles it keeps that.

Nothing slow may be imported here: it takes effect before anything else.
"""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_AGAIN_S = 0.02


def end_process() -> None:
    """From here on Ctrl-C ends the process."""
    _handle_with(signal.SIG_DFL)


def raise_interrupt() -> None:
    """From here on Ctrl-C raises KeyboardInterrupt."""
    _handle_with(_interrupt)


@contextmanager
def noted() -> Iterator[Stop]:
    """Ctrl-C within sets this token and raises nothing."""
    stop = Stop()
    before = _handle_with(stop.handle)
    try:
        yield stop
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


@contextmanager
def asked_to_leave(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Call ``handler`` at SIGTERM within, and at SIGHUP of a terminal that is closed.

    A signal that the caller ignores (nohup) stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {}
    for name in ("SIGTERM", "SIGHUP", "SIGBREAK"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP, others no SIGBREAK
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def leaving_nothing() -> Iterator[None]:
    """SIGTERM and SIGHUP within raise SystemExit, so that files that are half written go, as at Ctrl-C."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)  # the exit code that a shell gives such an end

    with asked_to_leave(leave):
        yield


class Stop:
    """A cancel token that Ctrl-C sets.

    An exception could come between any two steps and leave work half done; a token is
    asked for where it suits the work.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._raises = False

    def is_set(self) -> bool:
        """Whether the work is to end."""
        return self._is_set

    def set(self) -> None:
        """Ask for the end."""
        self._is_set = True

    @contextmanager
    def raising_when_repeated(self) -> Iterator[None]:
        """A second Ctrl-C raises KeyboardInterrupt within: for work that may take long between two looks."""
        self._raises = True
        try:
            yield
        finally:
            self._raises = False

    def handle(self, *_: Any) -> None:
        """The signal handler."""
        if self._raises and self._is_set:
            raise KeyboardInterrupt
        self.set()


def _handle_with(handler: Callable[..., object] | signal.Handlers) -> Any:
    """Set the handler and return the one before; None where it stays, because it is the caller's.

    Only the main thread gets signals and may say what happens then.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread():
        return None
    if before not in (_interrupt, signal.default_int_handler, signal.SIG_DFL):
        return None
    signal.signal(signal.SIGINT, handler)
    return before


def _interrupt_main() -> None:
    """Ctrl-C once more, from another thread; where the system can do that, it ends a wait of the main thread, too."""
    main = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and main is not None:
        signal.pthread_kill(main, signal.SIGINT)
    else:
        _thread.interrupt_main()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, but not while numpy is imported: its compiled modules would make an ImportError of it.

    Then it is raised a little later.
    """
    caller = frame
    while caller is not None:
        if caller.f_code.co_name == "<module>" and str(caller.f_globals.get("__name__")).startswith("numpy"):
            again = threading.Timer(_AGAIN_S, _interrupt_main)
            again.daemon = True
            again.start()
            return
        caller = caller.f_back
    raise KeyboardInterrupt
