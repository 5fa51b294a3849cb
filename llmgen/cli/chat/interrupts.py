"""Ctrl-C while an answer is made."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
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
