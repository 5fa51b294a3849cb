"""The standard streams of a command: what goes wrong with stdout counts, what goes wrong with stderr does not.

Stdout carries the answer, so an error there ends the command, and says that it comes from the output.  Stderr
carries notes about it, and an answer that stands whole on stdout is none the worse where they cannot be read.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, cast

CANNOT_WRITE = "cannot write the output"
"""Stands for stdout where an error of the system names the file that failed."""


def prepare_streams() -> None:
    """Make the standard streams safe to use.

    A stream that the caller has closed is opened on the null device (or the next file
    that is opened would take its place), and a character that a terminal cannot show
    becomes a question mark instead of a crash.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))
    if isinstance(sys.stdout, io.TextIOWrapper) and _is_plain(sys.stdout, sys.__stdout__):
        sys.stdout = _Output.replacing(sys.stdout)
    if isinstance(sys.stderr, io.TextIOWrapper) and _is_plain(sys.stderr, sys.__stderr__):
        sys.stderr = _Notes.replacing(sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    if (
        hasattr(sys.stdout, "reconfigure")
        and not sys.stdout.isatty()
        and "PYTHONIOENCODING" not in os.environ
    ):
        sys.stdout.reconfigure(encoding="utf-8")  # as stdin is read, whatever the locale says


def _is_plain(stream: io.TextIOWrapper, original: object) -> bool:
    """Whether a stream is the interpreter's own; the Windows console is written to differently."""
    return stream is original and not (os.name == "nt" and stream.isatty())


class _Output(io.TextIOWrapper):
    """A stdout whose errors say that they come from it, since they may surface anywhere.

    This wraps the text layer only.  With Python code below the buffer, Ctrl-C could arrive
    after the write and before the buffer records it, and the text would be written twice.
    """

    @classmethod
    def replacing(cls, stream: io.TextIOWrapper) -> _Output:
        """The stream as an object of this class; the original stays open because the interpreter holds it too."""
        stream.flush()
        buffer = io.BufferedWriter(io.FileIO(stream.fileno(), "w", closefd=False))
        return cls(buffer, stream.encoding, stream.errors, line_buffering=stream.line_buffering)

    def write(self, text: str) -> int:
        with _named():
            return super().write(text)

    def flush(self) -> None:
        with _named():
            super().flush()


@contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        error.filename = CANNOT_WRITE
        raise


class _Notes(io.TextIOWrapper):
    """A stderr on a full disk, a pipe that nobody reads or a lost terminal, seen as one that takes all.

    What cannot be written is dropped.  The file lies right below the text layer, which forgets a line as soon as it
    hands it on.  A buffer between them would keep what could not be written, and fail again when Python ends, and
    a file in Python below that buffer would write a line twice at Ctrl-C, as above.
    """

    @classmethod
    def replacing(cls, stream: io.TextIOWrapper) -> _Notes:
        """The stream as an object of this class; the original stays open because the interpreter holds it too."""
        stream.flush()
        file = cast(BinaryIO, io.FileIO(stream.fileno(), "w", closefd=False))
        return cls(file, stream.encoding, stream.errors, line_buffering=True)

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


def silence_stdout() -> None:
    """Point stdout at the null device, so that the interpreter's last flush cannot fail."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError, AttributeError):
        pass
