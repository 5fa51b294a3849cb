"""Tell a model's thoughts from its answer while both stream in."""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"


class ThinkSplitter:
    """Cuts text into ``(is_thought, text)``; the tags themselves are left out.

    Text that may be the beginning of a tag is held back until it is known.  Thoughts
    come first: ``<think>`` later in an answer is text.
    """

    def __init__(self, inside: bool = False) -> None:
        """``inside``: the prompt has opened the thoughts already."""
        self._inside = inside
        self._done = False
        self._held = ""
        self._fresh = True  # nothing of what comes now has been given out yet

    @property
    def inside(self) -> bool:
        """Whether the thoughts have begun and not ended."""
        return self._inside

    def push(self, text: str) -> list[tuple[bool, str]]:
        """The parts that are known with this text."""
        if self._done:
            return self._begun(False, text)
        self._held += text
        return self._inside_out() if self._inside else self._outside()

    def finish(self) -> list[tuple[bool, str]]:
        """What was held back."""
        held, self._held = self._held, ""
        if self._inside:
            return self._begun(True, held)
        return [(False, held)] if held else []

    def _outside(self) -> list[tuple[bool, str]]:
        start = self._held.lstrip()
        if start.startswith(OPEN):
            self._inside, self._held = True, start.removeprefix(OPEN)
            return self._inside_out()
        if OPEN.startswith(start):
            return []
        self._done, self._fresh, held = True, False, self._held
        self._held = ""
        return [(False, held)]

    def _inside_out(self) -> list[tuple[bool, str]]:
        thought, tag, rest = self._held.partition(CLOSE)
        if tag:
            self._inside, self._done, self._held = False, True, ""
            thoughts = self._begun(True, thought)
            self._fresh = True
            return [*thoughts, *self._begun(False, rest)]
        keep = next((n for n in range(len(CLOSE) - 1, 0, -1) if self._held.endswith(CLOSE[:n])), 0)
        cut = len(self._held) - keep
        thought, self._held = self._held[:cut], self._held[cut:]
        return self._begun(True, thought)

    def _begun(self, is_thought: bool, text: str) -> list[tuple[bool, str]]:
        """The text; line breaks before the thoughts and after them belong to the tags."""
        if self._fresh:
            text = text.lstrip("\n")
            self._fresh = not text
        return [(is_thought, text)] if text else []


def opened_by(prompt: str) -> bool:
    """Whether a prompt ends inside thoughts, as some templates begin an answer."""
    return prompt.rstrip().endswith(OPEN)


def ends_inside(text: str, inside: bool = False) -> bool:
    """Whether a text breaks off within thoughts."""
    splitter = ThinkSplitter(inside)
    splitter.push(text)
    return splitter.inside


def split(text: str, inside: bool = False) -> tuple[str, str]:
    """A whole text as ``(thoughts, answer)``."""
    splitter = ThinkSplitter(inside)
    parts = [*splitter.push(text), *splitter.finish()]
    return tuple("".join(part for is_thought, part in parts if is_thought is kind) for kind in (True, False))  # type: ignore[return-value]
