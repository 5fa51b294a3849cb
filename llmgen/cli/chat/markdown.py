"""Markdown that streams in, for a terminal.

Text is written line by line.  Only the current line is ever rewritten, when markup in it
becomes complete, so nothing flickers, nothing is lost, and long answers scroll like any
output.  A table is rewritten once, when it is complete or about to leave the screen; later
rows are written in its columns.  Lines are wrapped at words; code is left to the terminal,
so that it can be copied.  Unknown markup is shown as it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, TextIO

from llmgen.cli.chat.inline import inline
from llmgen.cli.chat.tables import Table, is_row
from llmgen.cli.terminal.growing import Cell, GrowingLine, stops
from llmgen.cli.terminal.plain import Fences
from llmgen.cli.terminal.wrapping import fitting_hang, widest

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_HEADING = re.compile(r"^(#{1,6})\s+(.*?)(?:\s+#+)?\s*$")
_BULLET = re.compile(r"^(\s*)([-*+])(\s+)(.*)$")
_NUMBER = re.compile(r"^(\s*\d{1,9}[.)]\s+)(.*)$")
_QUOTE = re.compile(r"^(\s*)>\s?(.*)$")
_RULE = re.compile(r"^\s{0,3}([-*_])(?:\s*\1){2,}\s*$")
# After this, a sign is a minus, a plus or a comparison, not the mark of an item.
_ARITHMETIC = re.compile(r"^[\d\s.,()+\-*/=^%$\u00d7\u00f7]*\d[\d\s.,()+\-*/=^%$\u00d7\u00f7]*$")

_LONGEST = 4000  # characters; longer lines are shown without markup


class MarkdownWriter:
    """Writes Markdown to a terminal as it grows."""

    def __init__(self, console: Console, out: TextIO, wraps: bool = True) -> None:
        """``console`` knows the terminal's colours and width; ``out`` is the terminal.

        ``wraps``: break lines at words, else the terminal breaks them.
        """
        self._console = console
        self._out = out
        self._wraps = wraps
        self._text = ""
        self._written = 0  # characters of the line that were written
        self._as_it_is = False
        self._fences = Fences()
        self._code: list[str] = []
        self._table = Table()
        self._stops = stops()
        self._line = self._begin()

    def write(self, text: str) -> None:
        """Show more text."""
        if self._stops != stops():
            self._stops, self._table.usable = stops(), False
        *whole, rest = text.split("\n")
        for part in whole:
            self._text += part
            self._end_line()
        if rest:
            self._text += rest
            self._grow()
        self._out.flush()

    def finish(self) -> None:
        """End the current line, if there is one."""
        if self._text:
            self._end_line()
        self._end_table()
        self._out.flush()

    def _begin(self) -> GrowingLine:
        wraps = self._wraps and not self._fences.inside
        return GrowingLine(self._out, self._size, self._painted, wraps=wraps)

    def _size(self) -> tuple[int, int]:
        return self._console.size.width, self._console.size.height

    def _grow(self) -> None:
        if self._table.lines and self._text.isspace():
            return  # the table may continue
        if not is_row(self._text):
            self._end_table()
        self._draw(whole=False)

    def _end_line(self) -> None:
        row = not self._fences.inside and is_row(self._text)
        if not row:
            self._end_table()
        rows: int | None = 0
        if not row or self._table.columns is None or not self._put_row():
            self._draw(whole=True)
            self._out.write("\n")
            rows = None if self._as_it_is else self._line.height
        text, line = self._text, self._line
        self._follow_code()
        self._text, self._written, self._as_it_is = "", 0, False
        self._line = self._begin()
        if row:
            self._table.add(text, rows, line.widest, self._console.width)
            if self._table.rows > self._console.height // 2:
                self._put_table()

    # Tables

    def _end_table(self) -> None:
        if self._table.lines:
            self._put_table()
            self._table = Table()

    def _put_table(self) -> None:
        """Rewrite the table's lines in columns; if that is impossible, they stay."""
        table = self._table
        if table.columns is not None or not table.has_rule or len(table.lines) < 3 or not table.usable:
            return
        if not table.stands(self._console.width) or table.rows >= self._console.height:
            table.usable = False
            return
        if lines := table.shown(self._console, inline):
            self._out.write(f"\r\x1b[{table.rows}A\x1b[J")
            self._print(lines)

    def _put_row(self) -> bool:
        """Show the current line as a row of a table that is in columns; False if it stays as it is."""
        if self._as_it_is or self._table.room > self._console.width or not self._line.take_back():
            return False
        self._print(self._table.row(self._text, self._console, inline))
        return True

    def _print(self, lines: list[Text]) -> None:
        for line in lines:
            self._out.write(self._escapes(line) + "\n")

    def _follow_code(self) -> None:
        """Keep track of code blocks and their text."""
        before = self._fences.inside
        self._fences.follow(self._text)
        if not before:
            self._code = []
        elif self._fences.inside:
            self._code.append(self._text.expandtabs(4))

    # Drawing

    def _draw(self, whole: bool) -> None:
        """Show the line with its markup; what is on the screen already is not rewritten."""
        line = self._text.expandtabs(4)
        if not self._as_it_is:
            text, hang = self._form(line, whole)
            self._as_it_is = len(line) > _LONGEST or not self._line.show(_cells(text), _cells(hang))
        if self._as_it_is:
            self._line.append([(char, "") for char in line[self._written :]])
        self._written = len(line)

    def _painted(self, cells: Sequence[Cell]) -> str:
        """The cells with the terminal's codes for their styles."""
        from rich.text import Text

        text = Text()
        for style, run in groupby(cells, itemgetter(1)):
            text.append("".join(char for char, _ in run), style or None)
        return self._escapes(text)

    def _escapes(self, text: Text) -> str:
        with self._console.capture() as capture:
            self._console.print(text, end="", soft_wrap=True)
        return capture.get()

    # Forms

    def _form(self, line: str, whole: bool) -> tuple[Text, Text]:
        """The line as it is shown, and the hanging indent of its rows after the first.

        ``whole``: the line is complete.
        """
        from rich.text import Text

        if self._fences.is_one(line):
            return Text(line, style="dim"), Text()
        if self._fences.inside:
            return self._highlighted(line), Text()
        if heading := _HEADING.match(line):
            style = "bold underline" if len(heading[1]) == 1 else "bold"
            return inline(heading[2], style), Text()
        if whole and _RULE.match(line):
            return Text("\u2500" * min(40, self._console.width), style="dim"), Text()
        if (quote := _QUOTE.match(line)) and not _ARITHMETIC.match(quote[2]):
            bar = Text.assemble(quote[1], ("\u258c ", "dim"))
            text, hang = self._item(quote[2], "italic")
            return bar + text, bar + hang
        return self._item(line)

    def _item(self, line: str, style: str = "") -> tuple[Text, Text]:
        """Write a line that is a list item or plain text."""
        from rich.text import Text

        if bullet := _BULLET.match(line):
            sign = bullet[2] if _ARITHMETIC.match(bullet[4]) else "\u2022"
            mark, rest = Text.assemble(bullet[1], (sign, "bold"), bullet[3]), bullet[4]
        elif number := _NUMBER.match(line):
            mark, rest = Text(number[1], style="bold"), number[2]
        else:
            rest = line.lstrip()
            mark = Text(line[: len(line) - len(rest)])
        hang = fitting_hang(widest(mark.plain), self._console.width)
        return mark + inline(rest, style), Text(" " * hang)

    def _highlighted(self, line: str) -> Text:
        """A line of code, highlighted in context, since strings may span lines."""
        from rich.text import Text

        if not self._fences.language or self._console.no_color:
            return Text(line)
        from rich.syntax import Syntax

        context = "\n".join([*self._code[-50:], line])
        code = Syntax(context, self._fences.language, theme="ansi_dark", background_color="default")
        last = code.highlight(context).split("\n", allow_blank=True)[len(self._code[-50:])]
        return last if last.plain == line else Text(line)


def _cells(text: Text) -> list[Cell]:
    """Every character with its style."""
    styles = [_named(text.style)] * len(text.plain)
    for span in text.spans:
        for i in range(span.start, min(span.end, len(styles))):
            styles[i] = f"{styles[i]} {_named(span.style)}".strip()
    return list(zip(text.plain, styles, strict=True))


def _named(style: object) -> str:
    name = str(style)
    return "" if name == "none" else name
