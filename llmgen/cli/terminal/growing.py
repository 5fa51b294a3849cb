"""A line of text that grows on a terminal, wrapped at words.

Text on the screen is rewritten only when it has to be: when a growing word no longer fits
its row, when the line's markup changes, and when the window is resized and the position of
the line is certain.  Rows end with a real line break, so a wider window moves none of them;
a narrower one may have rewrapped them, and then only what follows is fitted to it.  After
the program was stopped (Ctrl-Z), the row is written again below the shell's output.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, TextIO

from llmgen.cli.terminal.wrapping import BLANK, height, widest, wrap

Cell = tuple[str, Any]
"""A character and its style."""

_LONGEST = 4000  # characters of a line that are still laid out again as it grows


_stops = 0


def stops() -> int:
    """How often the program was stopped and continued; each time the cursor has moved."""
    return _stops


def watch_for_stops() -> None:
    """Count stops from now on."""
    sigcont = getattr(signal, "SIGCONT", None)
    if sigcont is None or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(sigcont) is signal.SIG_DFL:
        signal.signal(sigcont, _count_stop)


def _count_stop(*_: Any) -> None:
    global _stops
    _stops += 1


class GrowingLine:
    """One line, from its first character to its end."""

    def __init__(
        self,
        out: TextIO,
        size: Callable[[], tuple[int, int]],
        paint: Callable[[Sequence[Cell]], str],
        *,
        wraps: bool = True,
        goes_back: bool = True,
    ) -> None:
        """``size``: the terminal's columns and rows; ``paint``: the text to write for some cells.

        ``wraps``: break at words; else the terminal breaks the line.  ``goes_back``: whether the
        terminal has the control sequences to rewrite text.
        """
        self._out = out
        self._size = size
        self._paint = paint
        self._wraps = wraps
        self._goes_back = goes_back
        self._cells: list[Cell] = []
        self._hang: list[Cell] = []
        self._start = 0  # cells before this one are final
        self._drawn: list[list[Cell]] = []  # the rows of the other cells
        self._begins: list[int] = []  # which of the cells each row begins with
        self._adrift = False  # whether the cursor's position is unknown
        self._width = size()[0]
        self._stops = stops()

    @property
    def height(self) -> int | None:
        """How many rows of the terminal the line takes; None if that is unknown."""
        return None if self._start or self._adrift else self._height(self._drawn)

    @property
    def widest(self) -> int:
        """The columns of its widest row."""
        return max(map(_columns, self._drawn), default=0)

    def show(self, cells: Sequence[Cell], hang: Sequence[Cell] = ()) -> bool:
        """Show these cells as the line; ``hang`` goes before the rows after the first.

        False if that is impossible, because what has to change can no longer be reached.
        """
        self._follow_resize()
        new = list(cells)
        if self._start or self._adrift:
            if new[: len(self._cells)] != self._cells:
                return False
            self.append(new[len(self._cells) :])
            return True
        return self._redraw(new, list(hang))

    def append(self, cells: Sequence[Cell], hang: Sequence[Cell] | None = None) -> None:
        """Add to the end of the line, whatever the size of the window now."""
        self._follow_resize()
        if hang is not None and len(self._drawn) <= 1 and not self._start:
            self._hang = list(hang)
        rest = self._drift(list(cells)) if self._adrift else list(cells)
        if not rest:
            return
        if not self._redraw([*self._cells, *rest], self._hang):
            self._begin_row()
            self._redraw([*self._cells, *rest], self._hang)
        if len(self._cells) - self._start > _LONGEST:
            self._settle()

    def take_back(self) -> bool:
        """Remove the line from the screen; False if that is impossible."""
        self._follow_resize()
        return not self._start and not self._adrift and self._redraw([], [])

    def _redraw(self, cells: list[Cell], hang: list[Cell]) -> bool:
        """Show these cells; False if what has to change can no longer be reached."""
        rows, begins = self._layout(cells, hang)
        same = sum(
            1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self._drawn, rows, strict=False))
        )
        old = self._drawn[same:]
        if not old:
            self._write(rows[same:], begun=not same)
        elif len(old) == 1 and same < len(rows) and rows[same][: len(old[0])] == old[0]:
            self._write([rows[same][len(old[0]) :], *rows[same + 1 :]])
        else:
            same = min(same, len(rows) - 1)
            if not self._go_up(self._drawn[same:]):
                return False
            self._write(rows[same:])
        self._cells, self._hang, self._drawn, self._begins = cells, hang, rows, begins
        return True

    def _layout(self, cells: list[Cell], hang: list[Cell]) -> tuple[list[list[Cell]], list[int]]:
        """The rows from ``_start`` on, each with its hanging indent, and the cell at which each begins."""
        first = hang if self._start else []
        if not self._wraps:
            return [[*first, *cells[self._start :]]], [self._start]
        text = [char for char, _ in cells[self._start :]]
        rows = wrap(text, self._width, _columns(hang), _columns(first))
        drawn = [cells[self._start + row.begin : self._start + row.end] for row in rows]
        drawn = [[*(hang if i else first), *row] for i, row in enumerate(drawn)]
        return drawn, [self._start + row.begin for row in rows]

    def _write(self, rows: Sequence[Sequence[Cell]], begun: bool = True) -> None:
        """Write rows; ``begun``: the cursor is already where the first one goes."""
        text = "\n".join(self._paint(row) if row else "" for row in rows)
        if rows:
            self._out.write(text if begun else "\n" + text)

    def _go_up(self, rows: list[list[Cell]]) -> bool:
        """Remove these last rows from the screen; False if that is impossible."""
        n = self._height(rows)
        if not self._goes_back or n is None or n > self._size()[1]:
            return False
        self._out.write("\r" + (f"\x1b[{n - 1}A" if n > 1 else "") + "\x1b[J")
        return True

    def _height(self, rows: list[list[Cell]]) -> int | None:
        total = 0
        for row in rows:
            n = height([char for char, _ in row], self._width)
            if n is None:
                return None
            total += n
        return total

    # Text that can no longer be changed

    def _follow_resize(self) -> None:
        """Lay the line out again after a resize, as far as its position is certain."""
        before, self._width = self._width, self._size()[0]
        if self._stops != stops():
            self._stops = stops()
            self._begin_again()
            return
        if self._width == before or self._adrift or not self._drawn:
            return
        room = min(before, self._width)  # rows up to this width have not moved
        if self.widest <= room and self._redraw(self._cells, self._hang):
            return
        if self._wraps and _columns(self._drawn[-1]) <= room:
            self._settle()
        else:
            self._adrift = True

    def _settle(self) -> None:
        """Make all rows but the last one final."""
        self._start = self._begins[-1]
        self._drawn, self._begins = self._drawn[-1:], self._begins[-1:]

    def _begin_again(self) -> None:
        """Write the last row again at the cursor, and leave what is above."""
        if self._drawn:
            self._start = len(self._cells) if self._adrift else self._begins[-1]
            self._drawn, self._begins, self._adrift = [], [], False

    def _begin_row(self) -> None:
        """Leave everything as it is and continue below."""
        self._out.write("\n" + self._paint(self._hang) if self._hang else "\n")
        self._start = len(self._cells)
        self._drawn, self._begins = [list(self._hang)], [self._start]

    def _drift(self, cells: list[Cell]) -> list[Cell]:
        """Write the rest of the word at the cursor; returns the cells for the next row."""
        after_blank = bool(self._cells) and self._cells[-1][0] in BLANK
        blank = (
            0 if after_blank else next((i for i, cell in enumerate(cells) if cell[0] in BLANK), len(cells))
        )
        word = next((i for i in range(blank, len(cells)) if cells[i][0] not in BLANK), len(cells))
        if not self._wraps:
            blank = word = len(cells)
        self._write([cells[:blank]])
        self._cells = [*self._cells, *cells[:word]]
        if word < len(cells):
            self._adrift = False
            self._begin_row()
        return cells[word:]


def _columns(cells: Sequence[Cell]) -> int:
    return widest([char for char, _ in cells])
