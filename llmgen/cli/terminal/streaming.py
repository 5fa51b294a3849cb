"""Show the text of a generation as it comes, however it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from llmgen.cli.terminal.progress import clear

if TYPE_CHECKING:
    from llmgen.engine import GenerationEvent, GenerationResult


class Stream(Protocol):
    """What can be followed: a ``GenerationStream``, or a wrapper that changes its text."""

    @property
    def text(self) -> str: ...

    @property
    def result(self) -> GenerationResult | None: ...

    def __iter__(self) -> Iterator[GenerationEvent]: ...

    def close(self) -> object: ...


def follow(stream: Stream, show: Callable[[str], None]) -> GenerationResult:
    """Show the text as it comes and return the result.

    Ctrl-C between two tokens ends the answer just as it does within one.  Text that was held
    back, because it might have become a stop string or was half a character, is always
    shown at the end, also before an error is raised.
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
        clear()  # the bar of a prompt that was interrupted
        if len(stream.text) > shown:
            add(stream.text[shown:])
    assert stream.result is not None
    return stream.result
