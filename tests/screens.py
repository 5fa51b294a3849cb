"""Just enough of a terminal to read what a program leaves on its screen and above it."""

from __future__ import annotations

import re

from rich.cells import cell_len


class Screen:
    """Rows of text, and a cursor; ``reflows``: whether a resize breaks lines anew, as many terminals do."""

    def __init__(self, width: int, reflows: bool = True) -> None:
        self.width, self._reflows = width, reflows
        self.rows, self.row, self.column = [""], 0, 0
        self._goes_on = [False]  # whether the terminal broke the row, and its line goes on in the next one

    def feed(self, data: str) -> None:
        for token in re.findall(r"\x1b\[[0-9;]*[A-Za-z]|[\s\S]", data):
            if token == "\n":
                self._next_row(False)
            elif token == "\r":
                self.column = 0
            elif token.startswith("\x1b"):
                self._control(token)
            else:
                self._put(token)

    def resize(self, width: int) -> None:
        """Another width; a terminal that does not reflow cuts what is too long off, and so loses it."""
        if self._reflows:
            lines: list[str] = []
            at = (0, 0)
            for i, row in enumerate(self.rows):
                begun = i > 0 and self._goes_on[i - 1]
                lines = [*lines[:-1], lines[-1] + row] if begun else [*lines, row]
                if i == self.row:
                    at = len(lines) - 1, len(lines[-1])
            self.rows, self.row, self.column, self._goes_on = [""], 0, 0, [False]
            self.width = width
            where = (0, 0)
            for i, line in enumerate(lines):
                if i:
                    self._next_row(False)
                for n, char in enumerate(line, 1):
                    self._put(char)
                    if (i, n) == at:
                        where = self.row, self.column
                if (i, 0) == at:
                    where = self.row, 0
            self.row, self.column = where
        else:
            self.column = min(self.column, width)
            self.width = width

    def _next_row(self, goes_on: bool) -> None:
        self._goes_on[self.row] = goes_on
        self.row, self.column = self.row + 1, 0
        new = self.row + 1 - len(self.rows)
        self.rows += [""] * new
        self._goes_on += [False] * new

    def _control(self, token: str) -> None:
        if token[-1] == "A":
            self.row -= int(token[2:-1] or 1)
            assert self.row >= 0
        elif token[-1] in "JK":
            assert self.column == 0
            last = self.row + 1 if token[-1] == "J" else len(self.rows)
            self.rows[self.row] = ""
            del self.rows[last:], self._goes_on[last:]
            self._goes_on[self.row] = False
        else:
            assert token[-1] == "m", token

    def _put(self, char: str) -> None:
        size = cell_len(char)
        if self.column + size > self.width:
            self._next_row(True)
        self.rows[self.row] += char
        self.column += size

    @property
    def text(self) -> str:
        """All rows, as they follow one another."""
        return "".join(self.rows)

    @property
    def broken(self) -> list[str]:
        """The rows that the terminal broke."""
        return [row for row, goes_on in zip(self.rows, self._goes_on, strict=True) if goes_on]

    @property
    def words(self) -> list[str]:
        """The words, where rows end between two of them."""
        return " ".join(self.rows).split()
