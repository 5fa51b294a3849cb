"""Plain text that streams onto a terminal, wrapped at words.

Code between fences is left to the terminal to break, so that it can be copied as it is.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, TextIO

import typer

from llmgen.cli.terminal.growing import Cell, GrowingLine, watch_for_stops
from llmgen.cli.terminal.output import generated
from llmgen.cli.terminal.settings import is_simple, terminal_size
from llmgen.cli.terminal.wrapping import BLANK, hang_of

_FENCE = re.compile(r"^\s*(`{3,}|~{3,})\s*([^`\s]*)[^`]*$")

Write = Callable[[str], None]
WrapOption = Annotated[
    bool,
    typer.Option("--wrap/--no-wrap", help="On a terminal, break the lines of an answer at words."),
]


class Fences:
    """Which lines of a text are code."""

    def __init__(self) -> None:
        self.inside = False
        self.language = ""
        self._mark = ""

    @staticmethod
    def is_one(line: str) -> bool:
        """Whether a line, as far as it has come, is a fence."""
        return bool(_FENCE.match(line))

    def follow(self, line: str) -> None:
        """Take a whole line into account, which may begin or end code."""
        fence = _FENCE.match(line)
        if fence is None:
            return
        if not self.inside:
            self.inside, self._mark, self.language = True, fence[1], fence[2]
        elif fence[1].startswith(self._mark) and not fence[2]:
            self.inside = False


class PlainWriter:
    """Writes text to a terminal as it grows."""

    def __init__(self, out: TextIO, paint: Callable[[str], str] = str, wraps: bool = True) -> None:
        """``paint``: turns a piece of text into what is written, such as codes for its style."""
        self._out = out
        self._paint = paint
        self._wraps = wraps
        self._whole_words = is_simple()  # such a terminal cannot rewrite text
        self._fences = Fences()
        self._text = ""
        self._shown = 0
        self._line = self._begin()

    def write(self, text: str) -> None:
        """Show more text."""
        *whole, rest = text.split("\n")
        for part in whole:
            self._grow(part, whole=True)
            self._end_line()
        self._grow(rest, whole=False)
        self._out.flush()

    def finish(self) -> None:
        """Show what is held back."""
        self._grow("", whole=True)
        self._out.flush()

    def _begin(self) -> GrowingLine:
        return GrowingLine(
            self._out,
            lambda: terminal_size(self._out),
            self._painted,
            wraps=self._wraps and not self._fences.inside,
            goes_back=not self._whole_words,
        )

    def _painted(self, cells: Sequence[Cell]) -> str:
        return self._paint("".join(char for char, _ in cells))

    def _grow(self, text: str, whole: bool) -> None:
        self._text += text
        line = self._text.expandtabs()
        end = len(line)
        if self._whole_words and not whole:
            end = 1 + max((i for i, char in enumerate(line) if char in BLANK), default=-1)
        hang = [(" ", "")] * hang_of(line, terminal_size(self._out)[0])
        self._line.append([(char, "") for char in line[self._shown : end]], hang)
        self._shown = max(self._shown, end)

    def _end_line(self) -> None:
        self._out.write("\n")
        self._fences.follow(self._text)
        self._text, self._shown = "", 0
        self._line = self._begin()


def answer_writer(wraps: bool = True, after_label: bool = False) -> tuple[Write, Callable[[], None]]:
    """Functions that write a piece of a model's answer to stdout, and that end it.

    A pipe gets the bare text.  ``after_label``: the prompt ends with a label such as
    ``Assistant:``, so a blank that the answer begins with is left out.
    """
    if not sys.stdout.isatty():
        return (_without_blank(_write) if after_label else _write), lambda: None
    watch_for_stops()
    writer = PlainWriter(sys.stdout, wraps=wraps)

    def write(text: str) -> None:
        writer.write(generated(text))

    return (_without_blank(write) if after_label else write), writer.finish


def _without_blank(write: Write) -> Write:
    """``write`` for an answer whose first character is left out where it is a blank."""
    begun = False

    def write_rest(text: str) -> None:
        nonlocal begun
        write(text if begun else text.removeprefix(" "))
        begun = begun or bool(text)

    return write_rest


def print_answer(text: str, wraps: bool, after_label: bool = False) -> None:
    """Write a whole answer to stdout, and a line break; the arguments are those of :func:`answer_writer`."""
    write, end = answer_writer(wraps, after_label)
    write(text)
    end()
    sys.stdout.write("\n")
    sys.stdout.flush()


def _write(text: str) -> None:
    if text:
        sys.stdout.write(text)
        sys.stdout.flush()
