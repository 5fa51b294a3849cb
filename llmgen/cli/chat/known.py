"""The beginning of a conversation that the model has seen, and parts of a prompt around a place in its text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmgen.tokenizer import Part


@dataclass(frozen=True)
class Known:
    """The beginning of a prompt, up to the end of an answer, in the tokens that the model has seen.

    With other tokens for the same text, the cache could not be used.  ``pending`` are the
    last tokens, if they hold the beginning of a character.
    """

    text: str
    ids: list[int]
    pending: list[int] = field(default_factory=list)


def parts_after(parts: list[Part], n: int) -> list[Part]:
    """The parts without their first n characters."""
    out: list[Part] = []
    for text, is_data in parts:
        if n < len(text):
            out.append((text[n:], is_data))
        n = max(0, n - len(text))
    return out


def parts_before(parts: list[Part], n: int) -> list[Part]:
    """The first n characters of the parts."""
    out: list[Part] = []
    for text, is_data in parts:
        if n > 0:
            out.append((text[:n], is_data))
        n -= len(text)
    return out
