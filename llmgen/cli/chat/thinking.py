"""Separate a model's thoughts from its answer as they stream in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmgen.tokenizer.special import ANSWER_HEADS, BEGUN_BY_TEMPLATES, THINKING_TAGS

if TYPE_CHECKING:
    from llmgen.tokenizer import ChatTemplate, Tokenizer

_OPENING = tuple(opening for opening, _ in THINKING_TAGS)
_CLOSING = tuple(closing for _, closing in THINKING_TAGS)


class ThinkSplitter:
    """Splits text into parts ``(is_thought, text)`` without the marks.

    Text that may be the beginning of a mark is held back until that is known.  Thoughts
    come first: a ``<think>`` later in an answer is text.
    """

    def __init__(self, inside: bool = False, waits: bool = False) -> None:
        """``inside``: the prompt has already opened the thoughts.

        ``waits``: text without an opening mark may be thoughts too, so it is held back until
        a closing mark shows that it was, or the end that it was not.
        """
        self._inside = inside
        self._waits = waits
        self._closing = _CLOSING
        self._done = False
        self._held = ""
        self._fresh = True  # the current part has had no text yet

    @property
    def inside(self) -> bool:
        """Whether the thoughts have begun and not ended."""
        return self._inside

    @property
    def held(self) -> str:
        """The text that is held back."""
        return self._held

    def push(self, text: str) -> list[tuple[bool, str]]:
        """The parts that this text completes."""
        if self._done:
            return self._begun(False, text)
        self._held += text
        return self._inside_out() if self._inside else self._outside()

    def finish(self) -> list[tuple[bool, str]]:
        """The rest that was held back."""
        if not self._inside and self._waits and (end := _unopened(self._held, whole=True)):
            return self._close(*end)
        held, self._held = self._held, ""
        if self._inside:
            return self._begun(True, held)
        return [(False, held)] if held else []

    def _outside(self) -> list[tuple[bool, str]]:
        start = self._held.lstrip()
        for opening, closing in THINKING_TAGS:
            if start.startswith(opening):
                self._inside, self._closing, self._held = True, (closing,), start.removeprefix(opening)
                return self._inside_out()
        if any(opening.startswith(start) for opening in (*_OPENING, *ANSWER_HEADS)):
            return []
        for head in ANSWER_HEADS:
            if start.startswith(head):
                self._held, self._waits = start.removeprefix(head), False
        if self._waits:
            end = _unopened(self._held, whole=False)
            return self._close(*end) if end else []
        self._done, self._fresh, held = True, False, self._held
        self._held = ""
        return [(False, held)]

    def _inside_out(self) -> list[tuple[bool, str]]:
        ends = [(self._held.find(mark), mark) for mark in self._closing if mark in self._held]
        if ends:
            return self._close(*min(ends))
        cut = len(self._held) - max(_overlap(self._held, mark) for mark in self._closing)
        thought, self._held = self._held[:cut], self._held[cut:]
        return self._begun(True, thought)

    def _close(self, at: int, mark: str) -> list[tuple[bool, str]]:
        """The parts of the held text, in which a mark ends the thoughts."""
        thought, rest = self._held[:at], self._held[at + len(mark) :]
        self._inside, self._done, self._held = False, True, ""
        thoughts = self._begun(True, thought)
        self._fresh = True
        return [*thoughts, *self._begun(False, rest)]

    def _begun(self, is_thought: bool, text: str) -> list[tuple[bool, str]]:
        """The text, without line breaks before and after the thoughts, which belong to the marks."""
        if self._fresh:
            text = text.lstrip("\n")
            self._fresh = not text
        return [(is_thought, text)] if text else []


def _overlap(text: str, mark: str) -> int:
    """How many characters of a mark's beginning are at the end of the text."""
    return next((n for n in range(len(mark) - 1, 0, -1) if text.endswith(mark[:n])), 0)


def _unopened(text: str, whole: bool) -> tuple[int, str] | None:
    """Where a mark ends thoughts without an opening mark, and that mark.

    A sentence about ``</think>`` has a space or a quote before it, and continues after it.
    ``whole``: nothing follows the text.
    """
    for mark in BEGUN_BY_TEMPLATES:
        at = text.find(mark)
        while at >= 0:
            before, after = text[:at], text[at + len(mark) :]
            if any(opening in before for opening, _ in THINKING_TAGS):
                break
            if (
                before[-1:] not in (" ", "`", '"', "'", "(")
                or after.startswith("\n")
                or (whole and not after)
            ):
                return at, mark
            at = text.find(mark, at + 1)
    return None


def opened_by(prompt: str) -> bool:
    """Whether a prompt ends inside thoughts, which some templates open."""
    return prompt.rstrip().endswith(tuple(opening.rstrip() for opening in _OPENING))


def may_be_unopened(prompt: str, template: ChatTemplate, tokenizer: Tokenizer) -> bool:
    """Whether an answer to this prompt may have thoughts with a closing mark but no opening one.

    The template of some models writes the opening mark, and they may run with another template.
    """
    if prompt.rstrip().endswith(_CLOSING):
        return False  # the template has closed them
    return any(
        mark in template.source or len(tokenizer.encode(mark, add_special=False, parse_special=True)) == 1
        for mark in BEGUN_BY_TEMPLATES
    )


def ends_inside(text: str, inside: bool = False) -> bool:
    """Whether a text ends within thoughts."""
    splitter = ThinkSplitter(inside)
    splitter.push(text)
    return splitter.inside


def split(text: str, inside: bool = False) -> tuple[str, str]:
    """Split a whole text into ``(thoughts, answer)``."""
    splitter = ThinkSplitter(inside, waits=True)
    parts = [*splitter.push(text), *splitter.finish()]
    return tuple("".join(part for is_thought, part in parts if is_thought is kind) for kind in (True, False))  # type: ignore[return-value]
