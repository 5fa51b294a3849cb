"""Open a model for a command, with a line on stderr while the user waits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from llmgen.cli.options import EngineOptions
from llmgen.cli.output import note

if TYPE_CHECKING:
    from llmgen import LLM
    from llmgen.tokenizer import ChatTemplate


@contextmanager
def open_llm(path: Path, engine: EngineOptions, template: ChatTemplate | None = None) -> Iterator[LLM]:
    """Load the model at ``path``, with a template in place of the file's; closed at the end of the block."""
    from llmgen import LLM

    with compiling() as progress:
        llm = LLM(path, **engine.given(), chat_template=template, progress=progress)
    try:
        yield llm
    finally:
        llm.close()


@contextmanager
def compiling() -> Iterator[Callable[[int, int], None]]:
    """Progress of the kernels' first compilation: a bar on a terminal, else one line."""
    if not sys.stderr.isatty():
        yield _OneLine()
        return
    bar = _Bar()
    try:
        yield bar
    finally:
        bar.stop()


_WHAT = "compiling kernels for this CPU (first use)"


class _OneLine:
    """Says once that kernels are compiled."""

    said = False

    def __call__(self, done: int, total: int) -> None:
        if not self.said and done < total:
            note(f"{_WHAT}: {total - done} to do")
            self.said = True


class _Bar:
    """A bar that appears with the first call."""

    def __init__(self) -> None:
        self._stop: Callable[[], None] = lambda: None
        self._update: Callable[[int], None] | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._update is None:
            if done == total:
                return
            self._update = self._start(total)
        self._update(done)

    def _start(self, total: int) -> Callable[[int], None]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        bar = Progress(*columns, console=Console(stderr=True), transient=True)
        task = bar.add_task(_WHAT, total=total)
        bar.start()
        self._stop = bar.stop
        return lambda done: bar.update(task, completed=done)

    def stop(self) -> None:
        """Take the bar off the screen."""
        self._stop()
