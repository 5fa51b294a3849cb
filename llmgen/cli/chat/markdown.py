"""Markdown that streams in, for a terminal.

Text is written line by line.  Only the line that is being written is ever written again,
at the moment when markup in it is complete, so nothing flickers, nothing is lost, and
long answers scroll as any output does.  A table is written again once, when it is complete
or about to leave the screen; rows that come after that are written in its form.  Lines are
left to the terminal to wrap, which it does again when its window changes; what was begun
before such a change is not written again, as nobody knows where it stands then.  What is
not understood is shown as it is.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING, TextIO

from llmgen.cli.chat.tables import Table, is_row

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from rich.console import Console
    from rich.text import Text

_FENCE = re.compile(r"^( {0,3}|\s*)(`{3,}|~{3,})\s*([^`\s]*)[^`]*$")
_HEADING = re.compile(r"^(#{1,6})\s+(.*?)(?:\s+#+)?\s*$")
_BULLET = re.compile(r"^(\s*)([-*+])(\s+)(.*)$")
_NUMBER = re.compile(r"^(\s*\d{1,9}[.)]\s+)(.*)$")
_QUOTE = re.compile(r"^(\s*)>\s?(.*)$")
_RULE = re.compile(r"^\s{0,3}([-*_])(?:\s*\1){2,}\s*$")

_JOINER = "\u200d"
# Joiners, signs that change the one before, skins, flags, parts of syllables.
_UNSURE = re.compile("[\u200d\ufe0e\ufe0f\u20e3\u1100-\u11ff\U0001f1e6-\U0001f1ff\U0001f3fb-\U0001f3ff]")

_LONGEST = 4000  # characters of a line that are worth the work
_STYLES = {"strong": "bold", "em": "italic", "s": "strike", "code": "bold cyan"}


class MarkdownWriter:
    """Writes Markdown to a terminal as it grows."""

    def __init__(self, console: Console, out: TextIO) -> None:
        """``console`` knows the terminal's colours and width; ``out`` is the terminal."""
        self._console = console
        self._out = out
        self._line = ""
        self._shown: list[tuple[str, str]] = []
        self._written = 0  # characters of the line, as the model wrote it
        self._as_it_is = False
        self._fence = ""
        self._language = ""
        self._code: list[str] = []
        self._width = console.width  # when this line, or its table, was begun
        self._table = Table()

    def write(self, text: str) -> None:
        """Show more text."""
        *whole, rest = text.expandtabs(4).split("\n")
        for part in whole:
            self._line += part
            self._end_line()
        if rest:
            self._line += rest
            self._grow()
        self._out.flush()

    def finish(self) -> None:
        """End the line that is being written, if there is one."""
        if self._line:
            self._end_line()
        self._end_table()
        self._out.flush()

    def _grow(self) -> None:
        if self._table.lines and self._line.isspace():
            return  # whether the table goes on is not known yet
        if not is_row(self._line):
            self._end_table()
        self._begin()
        self._draw(whole=False)

    def _begin(self) -> None:
        """Note how wide the terminal is while a line, or its table, begins."""
        if not self._written and not self._table.lines:
            self._width = self._console.width

    def _end_line(self) -> None:
        row = not self._fence and is_row(self._line)
        if not row:
            self._end_table()
        self._begin()
        rows: int | None = 0
        if not row or self._table.columns is None or not self._put_row():
            self._draw(whole=True)
            self._out.write("\n")
            rows = None if self._as_it_is else self._rows()
        self._follow_fence()
        line, self._line, self._shown, self._written, self._as_it_is = self._line, "", [], 0, False
        if row:
            self._table.add(line, rows)
            if self._table.rows > self._console.height // 2:
                self._put_table()

    # Tables

    def _end_table(self) -> None:
        if self._table.lines:
            self._put_table()
            self._table = Table()

    def _put_table(self) -> None:
        """Show the table's lines in columns instead; where that cannot be, they stay."""
        table = self._table
        if table.columns is not None or not table.has_rule or len(table.lines) < 3 or not table.usable:
            return
        if self._moved() or table.rows >= self._console.height:
            table.usable = False
            return
        if lines := table.shown(self._console, self._inline):
            self._go_up(table.rows)
            self._print(lines)

    def _put_row(self) -> bool:
        """Show the line that is being written as one of a table that is in columns; False where it stays."""
        rows = self._rows()
        if self._as_it_is or self._moved() or rows is None or rows >= self._console.height:
            return False
        self._go_up(rows - 1)
        self._print(self._table.row(self._line, self._console, self._inline))
        return True

    def _print(self, lines: list[Text]) -> None:
        for line in lines:
            self._out.write(self._escapes(line) + "\n")

    def _follow_fence(self) -> None:
        """Note where code begins and ends."""
        fence = _FENCE.match(self._line)
        if not self._fence:
            if fence:
                self._fence, self._language, self._code = fence[2], fence[3], []
        elif fence and fence[2].startswith(self._fence) and not fence[3]:
            self._fence = ""
        else:
            self._code.append(self._line)

    # Drawing

    def _draw(self, whole: bool) -> None:
        """Show the line in its new form; what is there already is not written again."""
        if not self._as_it_is:
            self._as_it_is = len(self._line) > _LONGEST or not self._redraw(self._formatted(whole))
        if self._as_it_is:
            self._out.write(self._line[self._written :])
        self._written = len(self._line)

    def _redraw(self, text: Text) -> bool:
        """Show this form; False where the line's beginning has left the screen already."""
        cells = _cells(text)
        if cells[: len(self._shown)] == self._shown:
            new = text[len(self._shown) :] if self._shown else text
        else:
            rows = self._rows()
            if rows is None or rows >= self._console.height or self._moved():
                return False
            self._go_up(rows - 1)
            new = text
        self._shown = cells
        if new.plain:
            self._out.write(self._escapes(new))
        return True

    def _escapes(self, text: Text) -> str:
        """The text with the terminal's codes for its styles."""
        with self._console.capture() as capture:
            self._console.print(text, end="", soft_wrap=True)
        return capture.get()

    def _go_up(self, rows: int) -> None:
        """Take back these rows above, and the one where the cursor is."""
        self._out.write("\r" + (f"\x1b[{rows}A" if rows > 0 else "") + "\x1b[J")

    def _moved(self) -> bool:
        """Whether the terminal became another one since the line was begun: text may stand anywhere now."""
        return self._console.width != self._width

    def _rows(self) -> int | None:
        """How many rows of the terminal the line takes; None where terminals do not agree."""
        text = "".join(char for char, _ in self._shown)
        few, many = (_rows(text, self._width, widest) for widest in (False, True))
        return few if few == many else None

    # Forms

    def _formatted(self, whole: bool) -> Text:
        """The line as it is to be shown; ``whole``: it will not grow."""
        from rich.text import Text

        line = self._line
        if _FENCE.match(line):
            return Text(line, style="dim")
        if self._fence:
            return self._highlighted(line)
        if heading := _HEADING.match(line):
            style = "bold underline" if len(heading[1]) == 1 else "bold"
            return self._inline(heading[2], style)
        if whole and _RULE.match(line):
            return Text("\u2500" * min(40, self._console.width), style="dim")
        if quote := _QUOTE.match(line):
            return Text.assemble(quote[1], ("\u258c ", "dim"), self._inline(quote[2], "italic"))
        if bullet := _BULLET.match(line):
            return Text.assemble(bullet[1], ("\u2022", "bold"), bullet[3], self._inline(bullet[4]))
        if number := _NUMBER.match(line):
            return Text.assemble((number[1], "bold"), self._inline(number[2]))
        return self._inline(line)

    def _highlighted(self, line: str) -> Text:
        """A line of code; what came before it counts, as strings may go over lines."""
        from rich.text import Text

        if not self._language or self._console.no_color:
            return Text(line)
        from rich.syntax import Syntax

        context = "\n".join([*self._code[-50:], line])
        code = Syntax(context, self._language, theme="ansi_dark", background_color="default")
        last = code.highlight(context).split("\n", allow_blank=True)[len(self._code[-50:])]
        return last if last.plain == line else Text(line)

    @cached_property
    def _parser(self) -> MarkdownIt:
        from markdown_it import MarkdownIt

        # Without what would make text disappear: HTML, references, escapes as in \( of formulas.
        parser = MarkdownIt("commonmark", {"html": False}).enable("strikethrough")
        return parser.disable(["html_inline", "escape", "image", "link", "autolink", "entity", "newline"])

    def _inline(self, line: str, style: str = "") -> Text:
        """Emphasis and code within a line; white space at both ends stays."""
        from rich.text import Text

        body = line.strip()
        if not body or not set(body) & set("*_`~"):
            return Text(line, style=style)
        start = len(line) - len(line.lstrip())
        out = Text(line[:start], style=style)
        styles: list[str] = []
        for token in self._parser.parseInline(body)[0].children or []:
            name, _, place = token.type.rpartition("_")
            if place == "open":
                styles.append(_STYLES.get(name, ""))
            elif place == "close" and styles:
                styles.pop()
            else:
                current = [*styles, _STYLES["code"]] if token.type == "code_inline" else styles
                out.append(token.content, " ".join(filter(None, current)) or None)
        out.append(line[start + len(body) :])
        return out


def _rows(text: str, width: int, widest: bool) -> int:
    """The rows of a wrapped text.

    Terminals do not agree on how wide a sign of several characters is (a family, a flag,
    a skin): as wide as all of them, or no wider than one.
    """
    from rich.cells import cell_len

    column, rows, before = 0, 1, ""
    for char in text:
        unsure = before == _JOINER or _UNSURE.match(char)
        size, before = (2 if widest else 0) if unsure else cell_len(char), char
        if column + size > max(1, width):
            rows, column = rows + 1, 0
        column += size
    return rows


def _cells(text: Text) -> list[tuple[str, str]]:
    """Every character with its style."""
    styles = [str(text.style)] * len(text.plain)
    for span in text.spans:
        for i in range(span.start, min(span.end, len(styles))):
            styles[i] += f" {span.style}"
    return list(zip(text.plain, styles, strict=True))
