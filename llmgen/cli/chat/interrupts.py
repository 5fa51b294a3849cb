"""Signals that come while an answer is made: Ctrl-C, and those that end the program."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Stop:
    """A cancel token that Ctrl-C sets.

    An exception could come between any two steps and leave a conversation half changed;
    this is asked for at places that are good for it.
    """

    def __init__(self) -> None:
        self._asked = False
        self._raises = False

    def is_set(self) -> bool:
        """Whether the answer is to end."""
        return self._asked

    def set(self) -> None:
        """Ask for the end."""
        self._asked = True

    @contextmanager
    def raising_when_repeated(self) -> Iterator[None]:
        """A second Ctrl-C raises KeyboardInterrupt within: for work that asks nobody and may be long."""
        self._raises = True
        try:
            yield
        finally:
            self._raises = False

    def handle(self, *_: Any) -> None:
        """What happens at SIGINT."""
        if self._raises and self._asked:
            raise KeyboardInterrupt
        self.set()


@contextmanager
def noted() -> Iterator[Stop]:
    """Ctrl-C within sets what this gives, and does not raise."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.signal(signal.SIGINT, stop.handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


class Leaving:
    """SIGTERM, and SIGHUP of a terminal that is closed: the program leaves, and loses nothing.

    While an answer is made, the first such signal only ends the answer, which is kept
    before :meth:`leave_now` leaves.  At all other times SystemExit is raised at once, by
    ``way_out`` where that returns True: the editor has to put the terminal in order first.
    """

    def __init__(self) -> None:
        self.way_out: Callable[[SystemExit], bool] = lambda error: False
        self._number = 0
        self._stop: Stop | None = None

    @property
    def asked(self) -> bool:
        """Whether the program is to leave."""
        return self._number != 0

    def leave_now(self) -> None:
        """Leave, if it is to; the exit code is what a shell makes of the signal."""
        if self._number:
            raise self._error()

    def _error(self) -> SystemExit:
        return SystemExit(128 + self._number)

    @contextmanager
    def stopping(self, stop: Stop) -> Iterator[None]:
        """A signal within sets ``stop``; a second one leaves at once."""
        self._stop = stop
        try:
            if self.asked:
                stop.set()
            yield
        finally:
            self._stop = None

    def handle(self, number: int, frame: Any) -> None:
        """What happens at one of the signals."""
        again, self._number = self.asked, number
        if self._stop is not None and not again:
            self._stop.set()
        elif self._stop is not None or not self.way_out(self._error()):
            self.leave_now()

    @contextmanager
    def noticed(self) -> Iterator[None]:
        """Within, the signals come here; one that the caller has ignored (nohup) stays ignored."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {}
        for name in ("SIGTERM", "SIGHUP", "SIGBREAK"):
            number = getattr(signal, name, None)  # Windows has no SIGHUP, others no SIGBREAK
            if number is not None and signal.getsignal(number) == signal.SIG_DFL:
                before[number] = signal.signal(number, self.handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
