"""Where a batch's answers go: to a stream, in the input's order, or through a journal to a file."""

from __future__ import annotations

import os
import sys
from array import array
from pathlib import Path
from typing import Any, Protocol, TextIO

from llmgen.cli.batch.input import Line, Source
from llmgen.cli.batch.journal import Journal, part_of, refuse_existing
from llmgen.cli.terminal.output import json_line, print_json
from llmgen.cli.terminal.progress import aside
from llmgen.errors import LLMGenError, UsageError
from llmgen.files import naming
from llmgen.visible import visible


class Sink(Protocol):
    """Takes answers in the order in which they are finished."""

    def known(self, line: Line) -> str | None:
        """Called with every line, in the input's order; returns how it ended if it has its answer already."""

    def add(self, line: Line, answer: dict[str, Any]) -> None:
        """Take an answer."""

    def partial(self, line: Line, answer: dict[str, Any]) -> None:
        """Take an answer that was interrupted."""

    def finish(self) -> None:
        """Called when every line has its answer."""

    def close(self) -> None:
        """Called at the end, whatever happened."""

    def advice(self) -> str:
        """What to do after an interruption, as the end of a sentence."""


class ToStream:
    """Writes answers in the input's order, each as soon as all earlier ones are written.

    After an interruption, answers that were waiting for an earlier line are written at the end.
    """

    def __init__(self, path: Path | None = None) -> None:
        """``path`` is a pipe or a device; None is stdout."""
        self._path = path
        self._file: TextIO | None = None if path is None else open(path, "w", encoding="utf-8")
        self._order = array("q")
        self._written = 0
        self._waiting: dict[int, dict[str, Any]] = {}

    def known(self, line: Line) -> str | None:
        self._order.append(line.number)
        return None

    def add(self, line: Line, answer: dict[str, Any]) -> None:
        self._waiting[line.number] = answer
        while self._written < len(self._order) and self._order[self._written] in self._waiting:
            self._write(self._waiting.pop(self._order[self._written]))
            self._written += 1

    def partial(self, line: Line, answer: dict[str, Any]) -> None:
        self._waiting[line.number] = answer

    def finish(self) -> None:
        pass

    def close(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for number in sorted(waiting):
            self._write(waiting[number])
        if self._file is not None:
            self._file.close()

    def advice(self) -> str:
        return ""

    def _write(self, answer: dict[str, Any]) -> None:
        if self._file is None or self._path is None:
            with aside():
                print_json(answer)
                sys.stdout.flush()
            return
        with naming(self._path):
            self._file.write(json_line(answer) + "\n")
            self._file.flush()


class ToFile:
    """Keeps answers in a journal until all are finished."""

    def __init__(self, output: Path, depends_on: dict[str, Any], restart: bool, overwrite: bool) -> None:
        self._journal = Journal(output, depends_on, restart, overwrite)
        self._lines: list[tuple[int, str]] = []

    def known(self, line: Line) -> str | None:
        self._lines.append((line.number, line.digest))
        return self._journal.ending(line.number, line.digest)

    def add(self, line: Line, answer: dict[str, Any]) -> None:
        self._journal.add(line.number, line.digest, answer)

    def partial(self, line: Line, answer: dict[str, Any]) -> None:
        pass  # it is computed again from the start

    def finish(self) -> None:
        self._journal.finish(self._lines)

    def close(self) -> None:
        self._journal.close()

    def advice(self) -> str:
        return f"; finished answers are in {visible(self._journal.path)}, and the same command goes on from there"


def file_target(output: Path | None, source: Source, restart: bool, overwrite: bool) -> Path | None:
    """The file to write, with links resolved; None for a stream.  Raises LLMGenError if it is no usable target."""
    is_stream = output is None or str(output) == "-" or (output.exists() and not output.is_file())
    if is_stream and (restart or overwrite):
        raise UsageError("--restart and --overwrite belong to an --output file; add it, or leave them out")
    if output is not None and output.is_dir():
        raise UsageError(f"--output {visible(output)} is a folder; give the name of a file")
    if output is None or is_stream:
        return None
    target = Path(os.path.realpath(output)) if output.is_symlink() else output
    if target.is_symlink():
        raise UsageError(f"--output {visible(output)} is a link that leads nowhere; give another name")
    if not target.parent.is_dir() or not os.access(target.parent, os.W_OK):
        problem = "cannot be written" if target.parent.is_dir() else "does not exist"
        raise LLMGenError(f"the folder of --output {visible(output)} {problem}; give another name")
    if source.is_at(target):
        raise UsageError(f"{visible(output)} is the input; give another name to --output")
    if source.is_at(part_of(target)):
        raise UsageError(
            f"{visible(part_of(target))}, where answers are kept until all are there, is the input; give another"
            " name to --output"
        )
    if not overwrite:
        refuse_existing(target)
    return target


def open_sink(
    output: Path | None, target: Path | None, depends_on: dict[str, Any], restart: bool, overwrite: bool
) -> Sink:
    """The sink for what :func:`file_target` found."""
    if target is not None:
        return ToFile(target, depends_on, restart, overwrite)
    return ToStream(None if output is None or str(output) == "-" else output)
