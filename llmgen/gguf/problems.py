"""How the reader words what is wrong with a file.

Every message is one sentence: the path, what was found, what was expected, what
to do.  Names come from the file or from the user, so they are escaped before they
reach a terminal.
"""

from __future__ import annotations

import os
from typing import Final

from llmgen.errors import ModelFileError

DOWNLOAD_AGAIN: Final = "the file is damaged, download it again"
CUT_SHORT: Final = "the file is cut short, download it again"
CONVERT_AGAIN: Final = "convert the model again with a current converter"

_LONGEST_NAME = 120


def escape(text: str) -> str:
    """``text`` with everything a terminal would not print as itself as a backslash escape."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text
    )


def show_path(path: str | os.PathLike[str]) -> str:
    """A path for a message; odd characters are escaped."""
    return escape(os.fspath(path))


def show_name(name: str | bytes) -> str:
    """A key or tensor name for a message: quoted, escaped, and cut when very long."""
    text = name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else name
    if len(text) > _LONGEST_NAME:
        text = text[:_LONGEST_NAME] + "..."
    return f"'{escape(text)}'"


def problem(path: str | os.PathLike[str], found: str, what_to_do: str) -> ModelFileError:
    """The error for the file at ``path``: ``found`` says what is there and what was expected."""
    return ModelFileError(f"{show_path(path)}: {found}; {what_to_do}")
