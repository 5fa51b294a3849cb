"""Emphasis and code within a line of Markdown.

Text that only looks like markup stays as it is: products (``3*4*5``), powers (``2**10``),
patterns (``src/*/test/*``), names (``__init__``).  So emphasis begins only after a space, an
opening mark or punctuation, and ends only before a space or a closing mark; languages
without spaces between words may have it anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from llmgen.cli.terminal.wrapping import cell_size

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from rich.text import Text

_STYLES = {"strong": "bold", "em": "italic", "s": "strike", "code": "bold cyan"}
_BEFORE = frozenset("([{<>\"'\u201c\u2018\u00ab\u2039\u2014\u2013-:;,!?\u2026\u00a1\u00bf|=+*_~")
_AFTER = frozenset(".,;:!?)]}<>\"'\u201d\u2019\u00bb\u203a\u2014\u2013-\u2026/|*_~")
_AFTER_BOLD = _AFTER | frozenset("([`")
_QUOTES = "\"'"
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")  # Thai, Lao, Burmese, Khmer
_DUNDER = re.compile(r"__[A-Za-z]\w*?__(?!\w)")

Rule = Callable[[Any, bool], bool]


def inline(line: str, style: str = "") -> Text:
    """The line with its emphasis and code; white space at both ends stays."""
    from rich.text import Text

    body = line.strip()
    if not body or not set(body) & set("*_`~"):
        return Text(line, style=style)
    start = len(line) - len(line.lstrip())
    out = Text(line[:start], style=style)
    styles: list[str] = []
    for token in _parser().parseInline(body)[0].children or []:
        name, _, place = token.type.rpartition("_")
        if place == "open":
            styles.append(_STYLES.get(name, ""))
        elif place == "close" and styles:
            styles.pop()
        else:
            current = [*styles, _STYLES["code"]] if token.type == "code_inline" else styles
            out.append(token.content, " ".join(filter(None, current)) or None)
    out.append(line[start + len(body) :])
    return out


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt
    from markdown_it.rules_inline import emphasis, strikethrough

    # Without syntax that makes text disappear: HTML, references, escapes such as \( in formulas.
    parser = MarkdownIt("commonmark", {"html": False}).enable("strikethrough")
    parser.disable(["html_inline", "escape", "image", "link", "autolink", "entity", "newline"])
    parser.inline.ruler.at("emphasis", _careful(emphasis.tokenize))
    parser.inline.ruler.at("strikethrough", _careful(strikethrough.tokenize))
    return parser


def _careful(rule: Rule) -> Rule:
    """The parser's rule for a run of marks, restricted to places where emphasis may begin or end."""

    def tokenize(state: Any, silent: bool) -> bool:
        start, n = state.pos, len(state.delimiters)
        found = rule(state, silent)
        opens, closes = _may_open(state.src, start), _may_close(state.src, start, state.pos)
        for mark in state.delimiters[n:]:
            mark.open, mark.close = mark.open and opens, mark.close and closes
        return found

    return tokenize


def _may_open(text: str, start: int) -> bool:
    """Whether marks that begin here may begin emphasis."""
    before = text[start - 1] if start else " "
    if _DUNDER.match(text, start):
        return False
    if before in _QUOTES:  # a closing quote ends an operand, as in "a"*3
        return start < 2 or text[start - 2].isspace() or text[start - 2] in "([{"
    return before.isspace() or before in _BEFORE or _is_unspaced(before)


def _may_close(text: str, start: int, end: int) -> bool:
    """Whether the marks between may end emphasis."""
    after, then = text[end : end + 1] or " ", text[end + 1 : end + 2]
    if (after in _QUOTES and then.isalnum()) or (after in "-." and then.isdigit()):
        return False  # an operand follows
    return after.isspace() or after in (_AFTER_BOLD if end - start > 1 else _AFTER) or _is_unspaced(after)


def _is_unspaced(char: str) -> bool:
    """Whether the character's script has no spaces where emphasis begins and ends."""
    return cell_size(char) == 2 or bool(_UNSPACED.match(char))
