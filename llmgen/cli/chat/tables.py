"""Markdown tables: finding them, and showing them in columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

Align = Literal["left", "center", "right"]

_BAR = re.compile(r"(?<!\\)\|")
_RULE = re.compile(r"^:?-+:?$")
_GAP = " \u2502 "


def is_row(line: str) -> bool:
    """Whether this may be a line of a table: it begins with a bar."""
    return line.lstrip().startswith("|")


def cells(line: str) -> list[str]:
    """The cells between the bars."""
    body = line.strip().removeprefix("|")
    if body.endswith("|") and not body.endswith("\\|"):
        body = body[:-1]
    return [cell.strip().replace("\\|", "|") for cell in _BAR.split(body)]


class Table:
    """The lines of a table so far, and how many rows of the screen they take as written."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.rows = 0
        self._widest = self._width = 0
        self.usable = True
        """Whether the position of its lines is known."""
        self.columns: list[int] | None = None
        """The widths of the columns, once it is shown in columns."""

    @property
    def has_rule(self) -> bool:
        """Whether the second line is the rule below the head, which every table has."""
        if len(self.lines) < 2:
            return False
        rule = cells(self.lines[1])
        return len(rule) == len(cells(self.lines[0])) and all(map(_RULE.match, rule))

    @property
    def room(self) -> int:
        """The width of all columns together."""
        return sum(self.columns or []) + len(_GAP) * max(0, len(self.columns or []) - 1)

    def stands(self, width: int) -> bool:
        """Whether the rows are still as they were written on a terminal that is now this wide."""
        return self._widest <= width or self._width == width

    def add(self, line: str, rows: int | None, widest: int, width: int) -> None:
        """Add a line that takes ``rows`` rows of the screen (None if unknown).

        ``widest``: the columns of its widest row; ``width``: those of the terminal.
        """
        if not self.stands(width):
            self.usable = False
        self.lines.append(line)
        self._widest, self._width = max(self._widest, widest), width
        self.rows += rows or 0
        self.usable = self.usable and rows is not None
        if len(self.lines) == 2 and not self.has_rule:  # this one may be the head
            self.lines, self.rows, self.usable = [line], rows or 0, rows is not None
            self._widest = widest

    def shown(self, console: Console, inline: Callable[[str, str], Text]) -> list[Text] | None:
        """The whole table in columns, whose widths are kept; None if the terminal is too narrow.

        ``inline`` renders a cell's markup.
        """
        body = [self._row(line) for line in (self.lines[0], *self.lines[2:])]
        natural = [max(inline(row[i], "").cell_len for row in body) for i in range(len(body[0]))]
        self.columns = fitted(natural, console.width - len(_GAP) * (len(natural) - 1))
        if self.columns is None:
            return None
        head, *rest = [self._in_columns(row, console, inline, i == 0) for i, row in enumerate(body)]
        return [*head, self._rule(), *(line for lines in rest for line in lines)]

    def row(self, line: str, console: Console, inline: Callable[[str, str], Text]) -> list[Text]:
        """One more line in the existing columns."""
        return self._in_columns(self._row(line), console, inline, False)

    def _row(self, line: str) -> list[str]:
        """The line's cells, as many as the head has; surplus ones are joined."""
        n, found = len(cells(self.lines[0])), cells(line)
        return [*found[: n - 1], " | ".join(found[n - 1 :]), *[""] * (n - len(found) - 1)][:n]

    def _rule(self) -> Text:
        from rich.text import Text

        return Text("\u2500\u253c\u2500".join("\u2500" * width for width in self.columns or []), style="dim")

    def _in_columns(
        self, row: Sequence[str], console: Console, inline: Callable[[str, str], Text], is_head: bool
    ) -> list[Text]:
        """The lines of a row; a long cell takes several."""
        from rich.text import Text

        columns = self.columns or []
        wrapped = [
            inline(cell, "bold" if is_head else "").wrap(console, width, overflow="fold", tab_size=1)
            for cell, width in zip(row, columns, strict=True)
        ]
        lines = []
        for i in range(max(len(cell) for cell in wrapped)):
            parts = []
            for cell, width, align in zip(wrapped, columns, self._aligns(), strict=True):
                part = cell[i].copy() if i < len(cell) else Text()
                part.rstrip()
                part.align(align, width)
                parts.append(part)
            line = Text(_GAP, style="dim", end="").join(parts)
            line.rstrip()
            lines.append(line)
        return lines

    def _aligns(self) -> list[Align]:
        marks = {(True, True): "center", (False, True): "right"}
        return [marks.get((c.startswith(":"), c.endswith(":")), "left") for c in cells(self.lines[1])]  # type: ignore[misc]


def fitted(natural: Sequence[int], room: int) -> list[int] | None:
    """Column widths that fit into ``room``, the widest shrunk first; None below three characters each."""
    natural = [max(1, width) for width in natural]
    if room < 3 * len(natural):
        return None
    limit = max(natural)
    while sum(min(width, limit) for width in natural) > room:
        limit -= 1
    return [min(width, limit) for width in natural]
