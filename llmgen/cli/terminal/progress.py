"""One line on stderr that tells how far the work is.

It is drawn only on a terminal, never touches stdout, and is gone when the work is done.
Whatever else is written meanwhile, to stderr or stdout, takes the line off first
(:func:`aside`), because both may be the same terminal.  The line is drawn where the work
reports, by no thread of its own: that would take time from the threads that compute.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llmgen.cli.terminal.settings import can_draw, terminal_size

_EVERY_S = 0.1
_WIDEST = 100
_BAR = 30
_SHORTEST_BAR = 8
_LONG_PROMPT = 256  # tokens: fewer are done at once, but for the largest models

_lock = threading.RLock()  # a note may come from another thread
_drawn = ""


class Bar:
    """A line with what is done, how much of it, and the time left; to be used in a ``with`` block.

    ``total`` 0 stands for work whose size nobody knows: the line then has no bar.
    """

    def __init__(
        self, what: str = "", total: int = 0, unit: str = "", number: Callable[[int], str] = "{:,}".format
    ) -> None:
        self.what = what
        self._total = total
        self._unit = unit
        self._number = number
        self._can_draw = can_draw()
        self._begun: tuple[float, int] | None = None  # when, and what had been done then
        self._last = 0.0

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        clear()

    def update(self, done: int = 0, note: str = "") -> None:
        """Show that this much is done, with a few words; costs nothing when called often."""
        if not self._can_draw:
            return
        now = time.monotonic()
        if self._begun is None:
            self._begun = now, done
        elif now - self._last < _EVERY_S and (done < self._total or not self._total):
            return
        self._last = now
        _draw(self._line(done, note, now))

    def say(self, what: str) -> None:
        """Show other words, at once."""
        self.what, self._last = what, 0.0
        self.update()

    def _line(self, done: int, note: str, now: float) -> str:
        """The text; the bar gives way where the terminal is narrow."""
        if not self._total:
            return _cut(f"{self.what} {self._number(done)} {self._unit}" if done else self.what)
        amount = f"{self._number(done)}/{self._number(self._total)} {self._unit}".rstrip()
        words = "  ".join(filter(None, (amount, note, self._left(done, now))))
        room = min(_BAR, _width() - len(self.what) - len(words) - 2)
        bar = f"{_bar(done / self._total, room)} " if room >= _SHORTEST_BAR else ""
        return _cut(f"{self.what} {bar}{words}")

    def _left(self, done: int, now: float) -> str:
        assert self._begun is not None
        started, before = self._begun
        if not before < done < self._total:
            return ""
        seconds = (now - started) / (done - before) * max(0, self._total - done)
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes}:{rest:02} left" if minutes else f"{rest} s left"


class PromptBar:
    """The bar of a prompt, to be given as ``on_prompt``: it comes with a long one, and goes when that is computed.

    Whoever ends the work earlier calls :func:`clear`.
    """

    def __init__(self) -> None:
        self._bar: Bar | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None and total - done >= _LONG_PROMPT:
            self._bar = Bar("prompt", total, "tokens")
        if self._bar is not None and done < total:
            self._bar.update(done)
        elif self._bar is not None:
            self._bar = None
            clear()


def clear() -> None:
    """Take the line off the screen."""
    if _drawn:
        _draw("")


@contextmanager
def aside() -> Iterator[None]:
    """Take the line off the screen while something else is written there; the next report draws it again.

    Not at once: what goes into a pipe may come to the same terminal a little later.
    """
    with _lock:
        clear()
        yield


def _draw(line: str) -> None:
    """Put this line in place of the one that is drawn; empty takes it off."""
    global _drawn
    with _lock:
        try:
            # blanks, which every terminal knows; as many as there is room for: ^C may stand behind the line
            sys.stderr.write(("\r" + " " * _width() + "\r" if _drawn else "") + line)
            sys.stderr.flush()
        except (OSError, ValueError):
            pass  # the terminal is gone, and the work goes on
        _drawn = line


def _bar(share: float, width: int) -> str:
    done = round(max(0.0, min(1.0, share)) * width)
    try:
        "━─".encode(sys.stderr.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "#" * done + "." * (width - done)
    return "━" * done + "─" * (width - done)


def _cut(line: str) -> str:
    return line[: _width()]


def _width() -> int:
    """The columns that a line may take: not the last one, behind which terminals break."""
    return max(1, min(terminal_size(sys.stderr)[0], _WIDEST) - 1)
