"""Text that is piped or redirected into a command."""

from __future__ import annotations

import sys
import threading
from typing import BinaryIO

from llmgen.cli.terminal.output import note
from llmgen.errors import UsageError

_MOST_BYTES = 64 << 20
_SILENCE_SECONDS = 1.0


def piped_text(announce: bool) -> str | None:
    """Return all of stdin as text, or None where it is a terminal or closed.

    With ``announce``, a pipe that stays silent for a second is mentioned on
    stderr: the user may not know that the command waits for it.

    Raises:
        UsageError: what is piped is not UTF-8, or more than any context takes.
    """
    if sys.stdin.isatty():
        return None
    return _decode(_read_all(sys.stdin.buffer, announce))


def typed_text() -> str:
    """The same where the user asks for stdin by name: a terminal is read, too, up to the end that is typed."""
    return _decode(_read_all(sys.stdin.buffer, announce=False))


def as_message(text: str) -> str:
    """A text from a file or a pipe as a message: lines end as Unix has it, and the last one's end is left out."""
    return text.replace("\r\n", "\n").removesuffix("\n")


def _read_all(stream: BinaryIO, announce: bool) -> bytes:
    timer = threading.Timer(_SILENCE_SECONDS, note, ["waiting for text on stdin (--no-stdin does not wait)"])
    timer.daemon = True
    if announce:
        timer.start()
    try:
        data = stream.read1(1 << 16)  # type: ignore[attr-defined]
    finally:
        timer.cancel()
    blocks = [data]
    n_bytes = len(data)
    while data := stream.read(1 << 20):
        blocks.append(data)
        n_bytes += len(data)
        if n_bytes > _MOST_BYTES:
            raise UsageError(
                f"more than {_MOST_BYTES >> 20} MB on stdin, longer than any context; pipe less text"
            )
    return b"".join(blocks)


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"stdin is not UTF-8 text (byte 0x{data[error.start]:02x} at offset {error.start}); "
            "convert it first, or leave it alone with --no-stdin"
        ) from None
