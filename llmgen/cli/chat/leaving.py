"""SIGTERM, and SIGHUP of a terminal that is closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llmgen.cli.common.interrupts import Stop, asked_to_leave


class Leaving:
    """On SIGTERM and SIGHUP the program ends without losing anything.

    During an answer, the first such signal only ends the answer, which is kept before
    :meth:`leave_now` ends the program.  At other times SystemExit is raised at once, or by
    ``way_out`` if that returns True: the editor has to restore the terminal first.
    """

    def __init__(self) -> None:
        self.way_out: Callable[[SystemExit], bool] = lambda error: False
        self._number = 0
        self._stop: Stop | None = None

    @property
    def asked(self) -> bool:
        """Whether such a signal has come."""
        return self._number != 0

    def leave_now(self) -> None:
        """End the program if a signal has come, with the exit code that a shell gives it."""
        if self._number:
            raise self._error()

    def _error(self) -> SystemExit:
        return SystemExit(128 + self._number)

    @contextmanager
    def stopping(self, stop: Stop) -> Iterator[None]:
        """A signal within sets ``stop``; a second one ends the program at once."""
        self._stop = stop
        try:
            if self.asked:
                stop.set()
            yield
        finally:
            self._stop = None

    def handle(self, number: int, frame: Any) -> None:
        """The signal handler."""
        again, self._number = self.asked, number
        if self._stop is not None and not again:
            self._stop.set()
        elif self._stop is not None or not self.way_out(self._error()):
            self.leave_now()

    @contextmanager
    def noticed(self) -> Iterator[None]:
        """Handle the signals within."""
        with asked_to_leave(self.handle):
            yield
