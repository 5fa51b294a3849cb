"""How an answer appears: exact in a pipe; on a terminal as Markdown, with thoughts apart."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Literal

from llmgen.cli.chat.thinking import ThinkSplitter
from llmgen.cli.output import generated, is_simple

Think = Literal["show", "fold", "hide"]


class AnswerScreen:
    """Shows one answer while it comes."""

    def __init__(self, think: Think, markdown: bool, thinks: bool) -> None:
        """``thinks``: the answer begins with thoughts, which the prompt has opened."""
        self._terminal = sys.stdout.isatty()
        self._think: Think = "show" if think == "fold" and self._terminal and is_simple() else think
        # Into a pipe goes what the model wrote, unless thoughts are not wanted.
        apart = self._terminal or think != "show"
        self._splitter = ThinkSplitter(thinks) if apart else None
        self._write, self._end = _writer(markdown and self._terminal and not is_simple())
        self._thought_s: float | None = None
        self._thoughts = 0
        self._in_thought = False

    def show(self, text: str) -> None:
        """More text."""
        if self._splitter is None:
            sys.stdout.write(text)
            sys.stdout.flush()
            return
        for is_thought, part in self._splitter.push(text):
            self._add(is_thought, part)

    def finish(self) -> None:
        """What is held back, and the end of the line."""
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
            self._write(generated(text))
            return
        self._in_thought = True
        self._thought_s = self._thought_s or time.monotonic()
        self._thoughts += len(text.split())
        if not self._terminal or self._think == "hide":
            return
        if self._think == "show":
            sys.stdout.write(_dim(generated(text)))
        else:
            sys.stdout.write("\r" + _dim(f"thinking ... {self._thoughts} words"))
        sys.stdout.flush()

    def _leave_thought(self) -> None:
        if not self._in_thought:
            return
        self._in_thought = False
        if self._terminal and self._think == "show":
            sys.stdout.write("\n\n")
        elif self._terminal and self._think == "fold":
            seconds = time.monotonic() - (self._thought_s or time.monotonic())
            sys.stdout.write("\r\x1b[K" + _dim(f"thought for {seconds:.0f} s, {self._thoughts} words") + "\n")


def _dim(text: str) -> str:
    return text if is_simple() else f"\x1b[2m{text}\x1b[22m"


def _writer(markdown: bool) -> tuple[Callable[[str], None], Callable[[], None]]:
    """How to write a piece of an answer, and how to end it."""
    if not markdown:
        return _write_plain, lambda: _write_plain("\n")
    from rich.console import Console

    from llmgen.cli.chat.markdown import MarkdownWriter

    writer = MarkdownWriter(Console(highlight=False, markup=False, emoji=False), sys.stdout)
    return writer.write, writer.finish


def _write_plain(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
