"""Follow a generation and show its text, whatever ends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmgen.generation import GenerationResult, GenerationStream


def follow(stream: GenerationStream, show: Callable[[str], None]) -> GenerationResult:
    """Show the text as it comes and return the result.

    Ctrl-C between two tokens ends the answer as it does within one.  Text that was held
    back, because it might have become a stop string or was half a character, is shown
    at every ending, also before an error is raised.
    """
    shown = 0

    def add(text: str) -> None:
        nonlocal shown
        shown += len(text)
        show(text)

    try:
        for event in stream:
            add(event.text)
    except KeyboardInterrupt:
        stream.close()
    finally:
        if len(stream.text) > shown:
            add(stream.text[shown:])
    assert stream.result is not None
    return stream.result
