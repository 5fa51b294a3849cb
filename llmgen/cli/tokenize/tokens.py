"""Tokens for people: a table, and on a terminal the text with its token borders in colour."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmgen.cli.terminal.output import generated, note, table
from llmgen.visible import visible

if TYPE_CHECKING:
    from llmgen.tokenizer import Tokenizer

_COLOURS = (
    "black on bright_cyan",
    "black on bright_yellow",
    "black on bright_green",
    "black on bright_magenta",
)
_SPECIAL = "bold bright_white on red"


@dataclass(frozen=True)
class Piece:
    """A token: its id, its text, and whether it is a special token."""

    id: int
    text: str
    special: bool


def pieces(tokenizer: Tokenizer, ids: list[int]) -> list[Piece]:
    """The token of each id; incomplete characters are shown as escapes (``\\xf0``)."""
    guarded = frozenset(tokenizer.guarded_spellings)
    return [_piece(tokenizer, id, guarded) for id in ids]


def _piece(tokenizer: Tokenizer, id: int, guarded: frozenset[str]) -> Piece:
    spelling = tokenizer.token_text(id)
    if tokenizer.is_control(id) or spelling in guarded:
        return Piece(id, spelling, True)
    return Piece(id, tokenizer.token_bytes(id).decode("utf-8", "backslashreplace"), False)


def prompt_text(tokenizer: Tokenizer, ids: list[int]) -> str:
    """The text of a prompt, with special tokens spelled out."""
    guarded = frozenset(tokenizer.guarded_spellings)
    out = bytearray()
    for id in ids:
        spelling = tokenizer.token_text(id)
        special = tokenizer.is_control(id) or spelling in guarded
        out += spelling.encode() if special else tokenizer.token_bytes(id)
    return out.decode("utf-8", "replace")


def print_tokens(tokenizer: Tokenizer, ids: list[int], prompt: bool) -> None:
    """Print the tokens as a table, their number on stderr; first the text, in colour or for a ``prompt``."""
    found = pieces(tokenizer, ids)
    if _print_coloured(found):
        print()
    elif prompt:
        print(generated(prompt_text(tokenizer, ids)), end="\n\n")
    # in quotes: many pieces begin with a space
    rows = [(piece.id, piece.text if piece.special else f"'{piece.text}'") for piece in found]
    if any(piece.special for piece in found):
        kinds = ["special" if piece.special else "" for piece in found]
        table(
            ("id", "piece", "kind"), [(*row, kind) for row, kind in zip(rows, kinds, strict=True)], right=(0,)
        )
    else:
        table(("id", "piece"), rows, right=(0,))
    note(f"{len(ids)} token" + ("s" if len(ids) != 1 else ""))


def _print_coloured(found: list[Piece]) -> bool:
    """Print the text with a new colour for every token; False if there are no colours."""
    if not sys.stdout.isatty():
        return False
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    if console.no_color or console.color_system is None:
        return False
    text = Text()
    for i, piece in enumerate(found):
        shown = visible(piece.text.replace("\n", "\u21b5\n"), keep="\n")
        text.append(shown, _SPECIAL if piece.special else _COLOURS[i % len(_COLOURS)])
    console.print(text, soft_wrap=True)
    return True
