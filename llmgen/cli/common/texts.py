"""Text from files and pipes: UTF-8, and no more of it than a limit, since a pipe may have no end."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from llmgen.cli.terminal.output import note
from llmgen.errors import LLMGenError, UsageError
from llmgen.files import read_bounded
from llmgen.visible import visible

_MOST_BYTES = 64 << 20  # longer than any context
_SILENCE_SECONDS = 1.0


def read_text(path: Path) -> str:
    """The text of a file or a named pipe.  Raises OSError and UsageError."""
    with open(path, "rb") as file:
        return text_in(file, visible(path))


def text_in(file: BinaryIO, name: str, most: int = _MOST_BYTES, error: type[LLMGenError] = UsageError) -> str:
    """The text of an open file.  Raises ``error`` where it has over ``most`` bytes or is not UTF-8."""
    data = read_bounded(file, most)
    if data is None:
        raise error(f"{name} has over {most >> 20} MB, the most that is read; give a part of it")
    return decoded(data, name, error)


def decoded(data: bytes, name: str, error: type[LLMGenError] = UsageError) -> str:
    """Bytes as text.  Raises ``error`` where they are not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise error(
            f"{name} is not UTF-8 text (byte 0x{data[problem.start]:02x} at offset {problem.start});"
            " convert it first"
        ) from None


def piped_text(announce: bool) -> str | None:
    """All of stdin as text, or None where it is a terminal or closed.  Raises UsageError.

    With ``announce``, a pipe that stays silent for a second is mentioned on stderr: the
    user may not know that the command waits for it.
    """
    if sys.stdin.isatty():
        return None
    if announce:
        _announce_silence()
    return typed_text()


def typed_text() -> str:
    """All of stdin as text, also from a terminal, up to the end that is typed there.  Raises UsageError."""
    return text_in(sys.stdin.buffer, "stdin")


def _announce_silence() -> None:
    """Wait for the first byte on stdin, and after a second say so."""
    timer = threading.Timer(_SILENCE_SECONDS, note, ["waiting for text on stdin (--no-stdin does not wait)"])
    timer.daemon = True
    timer.start()
    try:
        sys.stdin.buffer.peek(1)  # type: ignore[union-attr]
    finally:
        timer.cancel()


def as_message(text: str) -> str:
    """A text from a file or a pipe as a message: Unix line ends, and none after the last line."""
    return text.replace("\r\n", "\n").removesuffix("\n")


def with_documents(files: Sequence[tuple[str, str]], message: str) -> str:
    """The message after the files (name, text) that it is about: models read the question best at the end."""
    blocks = [f"{name}:\n```\n{text.rstrip()}\n```\n\n" for name, text in files]
    return "".join(blocks) + message
