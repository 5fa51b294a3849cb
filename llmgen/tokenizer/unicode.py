"""Character classes, fixed to one version of Unicode (see unicode_table.py).

Pre-tokenizers split text by category.  As in llama.cpp, a text is first *folded*: every
code point beyond ASCII is replaced by a character for its category.  The regular
expressions then need only short ASCII classes, and do not depend on the Unicode version
of the Python that runs them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cache

WHITE = "\x0b"
"""What white space beyond ASCII folds to: a vertical tab, which ``\\s`` matches."""

FOLDED = {"N": "\xd1", "L": "\xd2", "P": "\xd3", "M": "\xd4", "S": "\xd5", "O": "\xd0"}
HAN_LETTER, HAN_OTHER = "\xd6", "\xd7"
"""What Han code points fold to, if a pre-tokenizer distinguishes them."""

ASCII = {
    "N": "0-9",
    "L": "A-Za-z",
    "P": r"!-#%-*,-/:;?@\[-\]_{}",
    "M": "",
    "S": r"$+<->^`|~",
}
"""The ASCII members of each category, as they stand inside a regular expression's brackets."""

_WHITE_SPACE = "\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_WHITE_BEYOND_ASCII = re.compile(f"[{_WHITE_SPACE}]")
_HAN = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2EBEF),
    (0x2F800, 0x2FA1F),
)


@cache
def _runs() -> tuple[list[int], list[str]]:
    """The first code point of each run, and its category."""
    from llmgen.tokenizer.unicode_table import RUNS

    starts: list[int] = []
    letters: list[str] = []
    position = 0
    for count, letter in re.findall("([0-9a-f]+)([A-Z])", RUNS):
        starts.append(position)
        letters.append(letter)
        position += int(count, 16)
    return starts, letters


def category(point: int) -> str:
    """The category of a code point: L, M, N, P, S, or O for all others."""
    starts, letters = _runs()
    return letters[bisect_right(starts, point) - 1]


class _Folding(dict[int, str]):
    """A table for ``str.translate`` that is filled as characters occur."""

    def __init__(self, han: bool) -> None:
        super().__init__((point, chr(point)) for point in range(128))
        self._han = han

    def __missing__(self, point: int) -> str:
        if _WHITE_BEYOND_ASCII.match(chr(point)):
            folded = WHITE
        elif self._han and any(first <= point <= last for first, last in _HAN):
            folded = HAN_LETTER if category(point) == "L" else HAN_OTHER
        else:
            folded = FOLDED[category(point)]
        self[point] = folded
        return folded


@cache
def _folding(han: bool) -> _Folding:
    return _Folding(han)


def fold(text: str, han: bool = False) -> str:
    """The text with every character beyond ASCII replaced by its category's stand-in.

    As long as the text.  ``han`` keeps Han code points apart from other letters.
    """
    return text if text.isascii() else text.translate(_folding(han))


def fold_white(text: str) -> str:
    """The text with white space beyond ASCII replaced by a vertical tab."""
    return text if text.isascii() else _WHITE_BEYOND_ASCII.sub(WHITE, text)


def replace_surrogates(text: str) -> str:
    """The text with lone surrogates, which no UTF-8 can hold, replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def is_utf8(raw: bytes) -> bool:
    """Whether the bytes are valid UTF-8."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
