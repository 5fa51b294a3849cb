"""Text files that go with a message."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llmgen.errors import UsageError
from llmgen.visible import visible

_MOST_BYTES = 64 << 20


def read_text(path: Path) -> str:
    """The text of a file or a pipe.  Raises OSError, and UsageError where it is no text or too long for any context."""
    with open(path, "rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise UsageError(
            f"{visible(path)} has over {_MOST_BYTES >> 20} MB, longer than any context; give a part of it"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{visible(path)} is not UTF-8 text (byte 0x{data[error.start]:02x} at offset {error.start});"
            " convert it first"
        ) from None


def with_documents(files: Sequence[tuple[str, str]], message: str) -> str:
    """The message behind the files (name, text) that it is about: models read the question best at the end."""
    blocks = [f"{name}:\n```\n{text.rstrip()}\n```\n\n" for name, text in files]
    return "".join(blocks) + message
