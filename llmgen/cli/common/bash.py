"""Bash's completion, which takes a colon and an equals sign for the end of a word."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout


@contextmanager
def whole_words() -> Iterator[None]:
    """Complete a line for the length of the block as if Bash had not cut ``hf.co/OWNER/REPO:TYPE``.

    Bash replaces only what stands behind the last colon, so the rest is cut off from what is offered.
    """
    line, cursor = os.environ.get("COMP_WORDS", ""), os.environ.get("COMP_CWORD", "")
    words = line.split("\n" if "\n" in line else " ")
    if os.environ.get("_LLMGEN_COMPLETE") != "complete_bash" or not cursor.isdecimal():
        yield
        return
    joined, place = rejoined(words, int(cursor))
    os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = "\n".join(joined), str(place)
    typed = joined[place] if place < len(joined) else ""
    out = io.StringIO()
    try:
        with redirect_stdout(out):
            yield
    finally:
        there = typed[: typed.rfind(":") + 1]
        sys.stdout.write("".join(line.removeprefix(there) for line in out.getvalue().splitlines(True)))


def rejoined(words: list[str], cursor: int) -> tuple[list[str], int]:
    """The words as they were typed, an option and its value as two; and which of them the cursor is in."""
    joined: list[str] = []
    place = cursor
    glue = False
    for i, word in enumerate(words):
        colon = bool(joined) and word != "" and set(word) == {":"}
        equals = word == "=" and bool(joined) and joined[-1].startswith("-")
        if colon or glue:
            joined[-1] += word
        elif not equals or i == cursor:
            joined.append("" if equals else word)
        glue = colon
        if i == cursor:
            place = len(joined) - 1
    return joined, place if cursor < len(words) else len(joined)
