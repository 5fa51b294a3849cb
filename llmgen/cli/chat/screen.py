"""How an answer is shown: exact in a pipe; on a terminal as Markdown, with thoughts separate."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Literal

from llmgen.cli.chat.thinking import ThinkSplitter
from llmgen.cli.terminal.growing import watch_for_stops
from llmgen.cli.terminal.output import generated
from llmgen.cli.terminal.plain import PlainWriter, Write, answer_writer
from llmgen.cli.terminal.settings import is_simple

Think = Literal["show", "fold", "hide"]


class AnswerScreen:
    """Shows one answer as it comes."""

    def __init__(
        self,
        think: Think,
        *,
        markdown: bool = False,
        thinks: bool = False,
        may_think: bool = False,
        answer_tags: tuple[str, str] | None = None,
        after_label: bool = False,
        wraps: bool = True,
    ) -> None:
        """``thinks``: the answer begins inside thoughts, which the prompt has opened.

        ``may_think``: it may begin with thoughts without an opening mark; if thoughts are not
        shown, it is held back until that is known.  ``answer_tags``: what this model puts around
        its answers.  ``after_label``: the space at its
        beginning belongs to the label before it.  ``wraps``: break lines at words.
        """
        self._terminal = sys.stdout.isatty()
        self._think: Think = "show" if think == "fold" and self._terminal and is_simple() else think
        # A pipe gets exactly what the model wrote, unless thoughts are not wanted.
        apart = self._terminal or think != "show"
        waits = may_think and self._think != "show"
        self._splitter = ThinkSplitter(thinks, waits, answer_tags) if apart else None
        self._write, self._end = _writer(markdown and self._terminal and not is_simple(), wraps)
        self._thoughts_writer = PlainWriter(sys.stdout, _dim, wraps)
        self._thought_s: float | None = None
        self._thoughts = 0
        self._in_word = False
        self._in_thought = self._counting = False
        self._drops_blank = after_label

    def show(self, text: str) -> None:
        """Show more text."""
        if self._drops_blank and text:
            text, self._drops_blank = text.removeprefix(" "), False
        if self._splitter is None:
            sys.stdout.write(text)
            sys.stdout.flush()
            return
        for is_thought, part in self._splitter.push(text):
            self._add(is_thought, part)
        if self._splitter.held and not self._in_thought:
            self._show_count(len(self._splitter.held.split()))

    def finish(self) -> None:
        """Show what is held back, and end the line."""
        if self._splitter is None:
            sys.stdout.write("\n")
        else:
            for is_thought, part in self._splitter.finish():
                self._add(is_thought, part)
            self._leave_thought()
            self._end()
        sys.stdout.flush()

    def _add(self, is_thought: bool, text: str) -> None:
        if not is_thought:
            self._leave_thought()
            self._clear_count()
            self._write(text)
            return
        self._in_thought = True
        self._count(text)
        if self._terminal and self._think == "show":
            self._thoughts_writer.write(generated(text))
        self._show_count(self._thoughts)

    def _count(self, text: str) -> None:
        """Count the words of the thoughts, each once though it may come in pieces."""
        self._thoughts += len(text.split()) - int(self._in_word and not text[:1].isspace())
        self._in_word = not text[-1:].isspace()

    def _show_count(self, words: int) -> None:
        """Instead of folded thoughts, show the number of words."""
        self._thought_s = self._thought_s or time.monotonic()
        if self._terminal and self._think == "fold":
            self._counting = True
            sys.stdout.write("\r" + _dim(f"thinking ... {words} words"))
            sys.stdout.flush()

    def _clear_count(self) -> None:
        if self._counting:
            self._counting = False
            sys.stdout.write("\r\x1b[K")

    def _leave_thought(self) -> None:
        if not self._in_thought:
            return
        self._in_thought = False
        if self._terminal and self._think == "show":
            self._thoughts_writer.finish()
            sys.stdout.write("\n\n")
        elif self._terminal and self._think == "fold":
            self._clear_count()
            seconds = time.monotonic() - (self._thought_s or time.monotonic())
            sys.stdout.write(_dim(f"thought for {seconds:.0f} s, {self._thoughts} words") + "\n")


def _dim(text: str) -> str:
    return text if is_simple() else f"\x1b[2m{text}\x1b[22m"


def _writer(markdown: bool, wraps: bool) -> tuple[Write, Callable[[], None]]:
    """Functions that write a piece of an answer, and that end it."""
    if not markdown:
        write, end = answer_writer(wraps)

        def end_line() -> None:
            end()
            sys.stdout.write("\n")

        return write, end_line
    watch_for_stops()
    from rich.console import Console

    from llmgen.cli.chat.markdown import MarkdownWriter

    writer = MarkdownWriter(Console(highlight=False, markup=False, emoji=False), sys.stdout, wraps)
    return lambda text: writer.write(generated(text)), writer.finish
