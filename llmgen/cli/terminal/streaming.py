"""Follow a generation and show its text, whatever ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from llmgen.cli.terminal.progress import clear

if TYPE_CHECKING:
    from llmgen.engine import GenerationEvent, GenerationResult


class Stream(Protocol):
    """What can be followed: a ``GenerationStream``, or one that changes its text."""

    @property
    def text(self) -> str: ...

    @property
    def result(self) -> GenerationResult | None: ...

    def __iter__(self) -> Iterator[GenerationEvent]: ...

    def close(self) -> object: ...


def follow(stream: Stream, show: Callable[[str], None]) -> GenerationResult:
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
        clear()  # of a prompt that was not computed to its end
        if len(stream.text) > shown:
            add(stream.text[shown:])
    assert stream.result is not None
    return stream.result
