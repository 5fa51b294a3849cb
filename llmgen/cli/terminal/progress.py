"""One line on stderr that shows how far the work is.

It is drawn only on a terminal, never on stdout, and is removed when the work is done.
Anything else that is written meanwhile, to stderr or stdout, removes the line first
(:func:`aside`), because both may be the same terminal.  The line is drawn when the work
reports, not by a thread of its own, which would take time from the threads that compute.
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
_LONG_PROMPT = 256  # tokens: shorter ones take no noticeable time on most models

_lock = threading.RLock()  # a note may come from another thread
_drawn = ""


class Bar:
    """A line with the work, how much of it is done, and the time left; used in a ``with`` block.

    ``total`` 0 stands for work of unknown size: the line then has no bar.
    """

    def __init__(
        self, what: str = "", total: int = 0, unit: str = "", number: Callable[[int], str] = "{:,}".format
    ) -> None:
        self.what = what
        self.total = total
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
        """Show that this much is done, with a short note; cheap to call often."""
        if not self._can_draw:
            return
        now = time.monotonic()
        if self._begun is None:
            self._begun = now, done
        elif now - self._last < _EVERY_S and (done < self.total or not self.total):
            return
        self._last = now
        _draw(self._line(done, note, now))

    def say(self, what: str) -> None:
        """Show another description at once."""
        self.what, self._last = what, 0.0
        self.update()

    def _line(self, done: int, note: str, now: float) -> str:
        """The text; on a narrow terminal the bar is shortened or left out."""
        if not self.total:
            return _cut(f"{self.what} {self._number(done)} {self._unit}" if done else self.what)
        amount = f"{self._number(done)}/{self._number(self.total)} {self._unit}".rstrip()
        words = "  ".join(filter(None, (amount, note, self._left(done, now))))
        room = min(_BAR, _width() - len(self.what) - len(words) - 2)
        bar = f"{_bar(done / self.total, room)} " if room >= _SHORTEST_BAR else ""
        return _cut(f"{self.what} {bar}{words}")

    def _left(self, done: int, now: float) -> str:
        assert self._begun is not None
        started, before = self._begun
        if not before < done < self.total:
            return ""
        seconds = (now - started) / (done - before) * max(0, self.total - done)
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes}:{rest:02} left" if minutes else f"{rest} s left"


class PromptBar:
    """A bar for a prompt, passed as ``on_prompt``: shown for a long one until it is computed.

    Code that ends the work earlier calls :func:`clear`.
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
    """Remove the line from the screen."""
    if _drawn:
        _draw("")


@contextmanager
def aside() -> Iterator[None]:
    """Remove the line from the screen while something else is written; the next report draws it again.

    It is not redrawn at once: what goes into a pipe may reach the same terminal a little later.
    """
    with _lock:
        clear()
        yield


def _draw(line: str) -> None:
    """Replace the line on the screen with this one; an empty one removes it."""
    global _drawn
    with _lock:
        try:
            # spaces, which work on every terminal; across the whole width, since ^C may follow the line
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
    """The columns that a line may take: all but the last, after which terminals wrap."""
    return max(1, min(terminal_size(sys.stderr)[0], _WIDEST) - 1)
