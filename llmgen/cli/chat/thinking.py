"""Separate a model's thoughts from its answer as they stream in."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from llmgen.tokenizer.special import ANSWER_HEADS, ANSWER_TAGS, BEGUN_BY_TEMPLATES, THINKING_TAGS

if TYPE_CHECKING:
    from llmgen.tokenizer import ChatTemplate, Tokenizer

_OPENING = tuple(opening for opening, _ in THINKING_TAGS)
_CLOSING = tuple(closing for _, closing in THINKING_TAGS)


class ThinkSplitter:
    """Splits text into parts ``(is_thought, text)`` without the marks.

    Text that may be the beginning of a mark is held back until that is known.  Thoughts
    come first: a ``<think>`` later in an answer is text.
    """

    def __init__(
        self, inside: bool = False, waits: bool = False, answer_tags: tuple[str, str] | None = None
    ) -> None:
        """``inside``: the prompt has already opened the thoughts.

        ``waits``: text without an opening mark may be thoughts too, so it is held back until
        a closing mark shows that it was, or the end that it was not.  ``answer_tags``: what this
        model puts around its answers.
        """
        self._inside = inside
        self._waits = waits
        self._answer = _Unwrapper(*answer_tags) if answer_tags else None
        self._closing = _CLOSING
        self._done = False
        self._held = ""
        self._fresh = True  # the current part has had no text yet

    @property
    def inside(self) -> bool:
        """Whether the thoughts have begun and not ended."""
        return self._inside

    @property
    def tags_left(self) -> tuple[str, str] | None:
        """The ``answer_tags`` for the continuation of this text; the opening one is empty if it was there."""
        return self._answer.left if self._answer else None

    @property
    def held(self) -> str:
        """The text that is held back."""
        return self._held

    def push(self, text: str) -> list[tuple[bool, str]]:
        """The parts that this text completes."""
        return self._unwrapped(self._split(text))

    def finish(self) -> list[tuple[bool, str]]:
        """The rest that was held back."""
        parts = self._unwrapped(self._rest())
        if self._answer and (end := self._answer.finish()):
            parts.append((False, end))
        return parts

    def _unwrapped(self, parts: list[tuple[bool, str]]) -> list[tuple[bool, str]]:
        """The parts, those of the answer without the tags around it."""
        if self._answer is None:
            return parts
        pushed = [(kind, text if kind else self._answer.push(text)) for kind, text in parts]
        return [(kind, text) for kind, text in pushed if text]

    def _split(self, text: str) -> list[tuple[bool, str]]:
        if self._done:
            return self._begun(False, text)
        self._held += text
        return self._inside_out() if self._inside else self._outside()

    def _rest(self) -> list[tuple[bool, str]]:
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


class _Unwrapper:
    """Takes off the tags around an answer: one at its very beginning, and then the other at its very end."""

    def __init__(self, opening: str, closing: str) -> None:
        self._opening, self._closing = opening, closing
        beginnings = "|".join(re.escape(closing[:n]) for n in range(len(closing), 0, -1))
        self._maybe_end = re.compile(rf"\n*(?:(?:{beginnings})\s*)?\Z")
        self._end = re.compile(rf"\n*{re.escape(closing)}\s*\Z")
        self._held = ""
        self._wrapped = not opening
        self._fresh = not self._wrapped  # the answer's own text has not begun

    @property
    def left(self) -> tuple[str, str] | None:
        """The tags that may still come."""
        if self._wrapped:
            return "", self._closing
        return (self._opening, self._closing) if self._fresh else None

    def push(self, text: str) -> str:
        """The text that this completes; what may belong to a tag is held back."""
        self._held += text
        if self._fresh:
            self._begin()
        if self._fresh:
            return ""
        match = self._maybe_end.search(self._held) if self._wrapped else None
        at = match.start() if match else len(self._held)
        text, self._held = self._held[:at], self._held[at:]
        return text

    def finish(self) -> str:
        """The rest that was held back, without the closing tag."""
        return self._end.sub("", self._held) if self._wrapped else self._held

    def _begin(self) -> None:
        """Take the opening tag off, if there is one, with the line breaks that follow it."""
        start = self._held.lstrip()
        if not self._wrapped and start.startswith(self._opening):
            self._wrapped, self._held = True, start.removeprefix(self._opening)
        if self._wrapped:
            self._held = self._held.lstrip("\n")
            self._fresh = not self._held
        else:
            self._fresh = self._opening.startswith(start)


def answer_tags(template: ChatTemplate) -> tuple[str, str] | None:
    """The tags around the answers of the model that has this chat template; None if there are none."""
    return next((tags for tags in ANSWER_TAGS if all(tag in template.source for tag in tags)), None)


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


def after(text: str, inside: bool, answer_tags: tuple[str, str] | None) -> ThinkSplitter:
    """The splitter behind an answer's beginning: whether it is inside thoughts there, which tags may still come."""
    splitter = ThinkSplitter(inside, answer_tags=answer_tags)
    splitter.push(text)
    return splitter


def split(text: str, inside: bool = False, answer_tags: tuple[str, str] | None = None) -> tuple[str, str]:
    """Split a whole text into ``(thoughts, answer)``; the arguments are those of :class:`ThinkSplitter`."""
    splitter = ThinkSplitter(inside, waits=True, answer_tags=answer_tags)
    parts = [*splitter.push(text), *splitter.finish()]
    return tuple("".join(part for is_thought, part in parts if is_thought is kind) for kind in (True, False))  # type: ignore[return-value]
