"""What commands write: notes, tables, JSON, numbers for people.

Rich is imported only to draw on a terminal; a pipe gets plain aligned columns.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from llmgen.cli.terminal.progress import aside
from llmgen.cli.terminal.settings import is_quiet
from llmgen.cli.terminal.wrapping import for_terminal
from llmgen.visible import is_hidden, make_visible, visible


def generated(text: str) -> str:
    """A model's text as it is written: exact into a pipe, without control sequences onto a terminal."""
    if not sys.stdout.isatty():
        return text
    return make_visible(text)


def shorten(text: str, limit: int) -> str:
    """Cut text to ``limit`` characters, the last of them an ellipsis when something was cut."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def size(n_bytes: float) -> str:
    """Bytes for people: ``98.4 MB`` (decimal units, as file managers and registries count)."""
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} B" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} TB"


def count(number: int) -> str:
    """A parameter count for people: ``134.5M``."""
    for factor, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= factor:
            return f"{number / factor:.1f}{unit}"
    return str(number)


def note(line: str, hang: int = 0) -> None:
    """Write one line about the work to stderr, unless --quiet was given.

    ``hang``: where a terminal's rows after the first begin.
    """
    if not is_quiet():
        say(line, hang)


def say(line: str, hang: int = 0) -> None:
    """Write one line to stderr even under --quiet: an error."""
    with aside():
        print(for_terminal(line, sys.stderr, hang), file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """Write one JSON object on stdout, one line, as text; NaN and infinities become null."""
    line = json_line(value)
    try:
        line.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # JSON can escape a character that the encoding lacks
        line = "".join(c if c.isascii() else json.dumps(c)[1:-1] for c in line)
    print(line)


def json_line(value: Any) -> str:
    """One JSON object as one line of text; NaN and infinities become null."""
    text = json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)
    # Escape what could steer a terminal, and lone surrogates, which UTF-8 cannot hold.
    return "".join(json.dumps(c)[1:-1] if is_hidden(c) else c for c in text)


def _plain(value: Any) -> Any:
    """Reduce numpy scalars and arrays, bytes and the rest to JSON's types."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, str | bool | int) or value is None:
        return value
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Sequence | set | frozenset | tuple):
        return [_plain(item) for item in value]
    return str(value)


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    title: str | None = None,
    right: Sequence[int] = (),
) -> None:
    """Print a table on stdout; ``right`` lists the columns that are aligned to the right."""
    cells = [[visible(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _rich_table(columns, cells, title, right)
    else:
        _plain_table(columns, cells, title, right, sys.stdout)


def _rich_table(
    columns: Sequence[str], cells: list[list[str]], title: str | None, right: Sequence[int]
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(
        title=Text(title) if title else None,
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for index, column in enumerate(columns):
        drawn.add_column(Text(column), justify="right" if index in right else "left", overflow="fold")
    for row in cells:
        drawn.add_row(*(Text(cell) for cell in row))
    Console(highlight=False).print(drawn)


def _plain_table(
    columns: Sequence[str], cells: list[list[str]], title: str | None, right: Sequence[int], out: TextIO
) -> None:
    if title:
        print(title, file=out)
    lines = [list(columns), *cells]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        padded = [
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(padded).rstrip(), file=out)


def facts(pairs: Sequence[tuple[str, object]]) -> None:
    """Print ``name  value`` lines on stdout, the names in one column."""
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        line = f"{name.ljust(width)}  {visible(value)}".rstrip()
        print(for_terminal(line, sys.stdout, width + 2))
