"""Where text may be broken into rows on a terminal, and how many columns it takes.

Words stay whole.  Text without spaces between words (Chinese, Japanese, emoji) is broken
between characters, but never before a closing mark or after an opening one.  A word that
is wider than the terminal starts a row of its own and runs over the edge, so that a long
link can still be clicked and copied.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TextIO

from llmgen.cli.terminal.settings import terminal_size

BLANK = " \u3000"
_JOINER = "\u200d"
_ZERO_WIDTH_SPACE = "\u200b"
# Joiners, variation selectors, keycaps, parts of Korean syllables, flags, skin tones.
_UNSURE = re.compile("[\u200d\ufe0e\ufe0f\u20e3\u1100-\u11ff\U0001f1e6-\U0001f1ff\U0001f3fb-\U0001f3ff]")
_HANGUL = re.compile("[\uac00-\ud7a3]")  # Korean puts spaces between words
_NOT_FIRST = frozenset(
    ",.;:!?)]}'\"%\u00b0\u2019\u201d\u2026\u2025\u2030\u2103\u3001\u3002\u3003\u3005\u3009\u300b\u300d\u300f\u3011\u3015"
    "\u3017\u3041\u3043\u3045\u3047\u3049\u3063\u3083\u3085\u3087\u308e\u309d\u309e\u30a1\u30a3\u30a5\u30a7\u30a9\u30c3"
    "\u30e3\u30e5\u30e7\u30ee\u30f5\u30f6\u30fb\u30fc\u30fd\u30fe\uff01\uff05\uff09\uff0c\uff0e\uff1a\uff1b\uff1f\uff3d\uff5d"
)
_NOT_LAST = frozenset(
    "([{$#\u2018\u201c\u3008\u300a\u300c\u300e\u3010\u3014\u3016\uff08\uff3b\uff5b\uff04\uffe5"
)
_HANGING = re.compile(r"\s*(?:(?:[-*+\u2022]|\d{1,9}[.)])\s+|>\s?)?")


@dataclass(frozen=True)
class Row:
    """The characters ``begin`` to ``end`` of a text, without the spaces at which it was broken."""

    begin: int
    end: int


def wrap(text: Sequence[str], width: int, hang: int = 0, start: int = 0) -> list[Row]:
    """The rows of a text, at least one.

    The first begins in column ``start``, the others in column ``hang``.  Characters whose width
    terminals disagree on count as the wider, so that a row never takes two.
    """
    rows: list[Row] = []
    begin = end = 0
    column = start
    for first, last in _words(text):
        size, gap = widest(text[first:last]), widest(text[end:first])
        if end > begin and column + gap + size > width:
            rows.append(Row(begin, end))
            begin, column, gap = first, hang, 0
        column += gap + size
        if column > width:  # the terminal breaks this row
            few, many = (
                _walk(text[begin:last], width, hang if rows else start, wide) for wide in (False, True)
            )
            column = many[1] if few == many else width  # unknown: the next word begins a row
        end = last
    return [*rows, Row(begin, end)]


def wrapped(text: str, width: int, hang: int = 0) -> str:
    """Text with line breaks where its rows end; ``hang``: spaces before the rows after the first."""
    hang = fitting_hang(hang, width)
    lines = []
    for line in text.split("\n"):
        rows = wrap(line, width, hang)
        lines.append(("\n" + " " * hang).join(line[row.begin : row.end] for row in rows))
    return "\n".join(lines)


def for_terminal(text: str, stream: TextIO, hang: int = 0) -> str:
    """The text, wrapped at words if the stream is a terminal."""
    if not stream.isatty():
        return text
    return wrapped(text.expandtabs(), terminal_size(stream)[0], hang)


def hang_of(line: str, width: int) -> int:
    """The column where a line's text begins, after its indent and a list or quote mark."""
    found = _HANGING.match(line)
    return fitting_hang(widest(found.group()) if found else 0, width)


def fitting_hang(hang: int, width: int) -> int:
    """The hanging indent, or none if it would leave too little room for text."""
    return hang if 2 * hang <= width else 0


def widest(text: Sequence[str]) -> int:
    """The most columns that a terminal gives a text."""
    return sum(_sizes(text, True))


def height(text: Sequence[str], width: int) -> int | None:
    """How many rows a terminal needs for text that it breaks itself; None if terminals do not agree."""
    few, many = (_walk(text, width, 0, wide)[0] for wide in (False, True))
    return few if few == many else None


def _words(text: Sequence[str]) -> list[tuple[int, int]]:
    """The ranges that must not be broken."""
    words: list[tuple[int, int]] = []
    begin: int | None = None
    for i, char in enumerate(text):
        if char in BLANK:
            if begin is not None:
                words.append((begin, i))
            begin = None
        elif begin is None:
            begin = i
        elif _may_break(text[i - 1], char):
            words.append((begin, i))
            begin = i
    return words if begin is None else [*words, (begin, len(text))]


def _may_break(before: str, char: str) -> bool:
    """Whether a row may end between two characters, neither of them a space."""
    if before == _ZERO_WIDTH_SPACE or before == "\u2014":  # an em dash
        return char not in _NOT_FIRST
    if before.isascii() and char.isascii():
        return False
    if before == _JOINER or _UNSURE.match(char) or cell_size(char) == 0:
        return False
    return (
        (_stands_alone(before) or _stands_alone(char)) and char not in _NOT_FIRST and before not in _NOT_LAST
    )


def _stands_alone(char: str) -> bool:
    """Whether a character is written without spaces around it, as in Chinese."""
    return not char.isascii() and cell_size(char) == 2 and not _HANGUL.match(char)


def _walk(text: Sequence[str], width: int, column: int, wide: bool) -> tuple[int, int]:
    """The rows that a terminal needs for text that begins in a column, and the column where it ends."""
    rows = 1
    for size in _sizes(text, wide):
        if column + size > max(1, width):
            rows, column = rows + 1, 0
        column += size
    return rows, column


def _sizes(text: Sequence[str], wide: bool) -> list[int]:
    """The columns of each character.

    Terminals disagree about a sign made of several characters (a family, a flag, a skin
    tone): it is as wide as all of them together, or only as wide as the first.
    """
    sizes, before = [], ""
    for char in text:
        unsure = before == _JOINER or (not char.isascii() and _UNSURE.match(char))
        sizes.append((2 if wide else 0) if unsure else cell_size(char))
        before = char
    return sizes


@lru_cache(4096)
def cell_size(char: str) -> int:
    """The columns of one character on its own."""
    if char.isascii():
        return 1
    from rich.cells import cell_len

    return cell_len(char)
