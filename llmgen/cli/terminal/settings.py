"""What the terminal can do, and whether the user wants notes and progress."""

from __future__ import annotations

import os
import sys
from typing import TextIO


def terminal_size(stream: TextIO) -> tuple[int, int]:
    """Columns and rows of a stream's terminal; the variables COLUMNS and LINES take precedence."""
    try:
        columns, rows = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        columns = rows = 0
    return _stated("COLUMNS") or columns or 80, _stated("LINES") or rows or 24


def _stated(name: str) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else 0


def is_simple() -> bool:
    """Whether the terminal declares that it has no control sequences."""
    return os.environ.get("TERM") in ("dumb", "unknown")


def can_draw() -> bool:
    """Whether stderr is a terminal on which a line can be replaced."""
    return sys.stderr.isatty() and not is_simple() and not is_quiet()


_quiet = False


def be_quiet(quiet: bool) -> None:
    """Set whether notes and progress are left out from here on."""
    global _quiet
    _quiet = quiet


def is_quiet() -> bool:
    """Whether only errors are shown."""
    return _quiet
