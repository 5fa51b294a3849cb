"""Which parts of a rendered chat come out of the messages.

Text in a message must never become a control token, so whoever encodes a prompt has to
know what the template wrote and what it copied.  A template is a program: it trims,
cuts, reorders, changes case, encodes as JSON, and asks what a text contains.  Marks put
around a text would get in its way, and a subclass of str is lost in the first operation.

So the conversation is rendered twice.  The first time as it is: that gives the prompt.
The second time its characters are replaced, one for one, by *stand-ins*: code points of
the private use areas that occur nowhere in the conversation or the template, and that no
text operation treats in a special way.  With the stand-ins turned back, the second
rendering must be the first; then every character has a known origin.  Where it is not,
because the template looked at the characters that were replaced, fewer of them are:

1. every character of the texts but white space: the parts are whole texts;
2. only characters that spellings of control tokens are made of (``<``, ``|`` ...): enough
   to tell every such spelling that a message has a share in, whatever the template did;
3. the spellings themselves, if rendering 2 shows that the template wrote all others.

If a template changes its mind over the characters of 2 and has the messages form a
spelling that they did not hold, its rendering of 2 is the prompt: the template then saw
stand-ins instead of, say, ``<``.  That prompt is safe, and as it would be for a message
that says the same in other words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

from llmgen.errors import TemplateError

Part = tuple[str, bool]
"""A stretch of a prompt, and whether it is data."""

_MARKUP = "<>[]{}|\uff5c\u2581"
"""What spellings of control tokens are made of, where no vocabulary says it."""

_TRUSTED_KEYS = frozenset(["role", "type"])
"""Values that templates compare, and that a caller chooses from a list."""

# Private use areas.  The first is in the basic plane, where JSON escapes are shortest.
_SPARE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))

Run = Callable[[Any, dict[str, Any]], str]
"""Renders a conversation and the tools beside it."""


def mark_data(run: Run, messages: Any, tools: dict[str, Any], known: str, guarded: list[str]) -> list[Part]:
    """Render, and cut the prompt into parts; ``known`` is all text that must not be a stand-in."""
    prompt = run(messages, tools)
    texts = list(_texts([messages, tools]))
    cut = _cut_characters(guarded)
    if not any(cut & set(text) for text in texts) and guarded:
        # Nothing in the messages can be taken for a control token.
        return _parts(prompt, [])
    stand_ins = _StandIns(texts + [known])
    whole = stand_ins.render(run, messages, tools, lambda text, key: _printable(text, key, cut))
    if whole is not None and stand_ins.back(whole) == prompt:
        return _filled(_parts(prompt, stand_ins.positions(whole)))
    safe = stand_ins.render(run, messages, tools, lambda text, _: _at(text, cut))
    if safe is not None and stand_ins.back(safe) == prompt:
        return _parts(prompt, stand_ins.positions(safe))
    if safe is None:
        raise TemplateError(
            "the chat template fails as soon as a message holds unusual characters, so it cannot be told "
            "what it wrote from what it copied; give another template"
        )
    spelling = _pattern(guarded or sorted(_MARKUP))
    written = spelling.findall(safe)
    if spelling.findall(prompt) == written:
        return _parts(prompt, [])
    exact = stand_ins.render(run, messages, tools, lambda text, _: _spelled(text, spelling))
    if exact is not None and stand_ins.back(exact) == prompt and spelling.findall(exact) == written:
        return _parts(prompt, stand_ins.positions(exact))
    return _parts(stand_ins.back(safe), stand_ins.positions(safe))


class _StandIns:
    """Pairs characters with code points that occur in none of the given texts."""

    def __init__(self, texts: list[str]) -> None:
        used = set().union(*texts)
        self._free = iter(p for area in _SPARE for p in area if chr(p) not in used)
        self._of: dict[str, str] = {}
        self._origin: dict[str, str] = {}

    def render(
        self,
        run: Run,
        messages: Any,
        tools: dict[str, Any],
        choose: Callable[[str, str], Iterable[int]],
    ) -> str | None:
        """The prompt with the characters at the chosen positions replaced; None if that fails."""

        def replace(text: str, key: str) -> str:
            chars = list(text)
            for position in choose(text, key):
                chars[position] = self._stand_in(chars[position])
            return "".join(chars)

        try:
            return run(_map(messages, replace), _map(tools, replace))
        except TemplateError:
            return None

    def _stand_in(self, char: str) -> str:
        if char not in self._of:
            try:
                stand_in = chr(next(self._free))
            except StopIteration:
                return char
            self._of[char] = stand_in
            self._origin[stand_in] = char
        return self._of[char]

    def _tokens(self, text: str) -> Iterator[tuple[str, bool]]:
        """The text in pieces, stand-ins turned back, and whether each was one.

        JSON that may hold ASCII only has a stand-in as an escape, and the character itself
        as one too if it is beyond ASCII.
        """
        escapes = {json.dumps(stand_in)[1:-1]: char for stand_in, char in self._origin.items()}
        every = [*self._origin, *escapes]
        if not every:
            yield text, False
            return
        position = 0
        for match in re.finditer("|".join(map(re.escape, every)), text):
            if match.start() > position:
                yield text[position : match.start()], False
            found = match.group()
            char = self._origin.get(found)
            yield (json.dumps(escapes[found])[1:-1] if char is None else char), True
            position = match.end()
        if position < len(text):
            yield text[position:], False

    def back(self, text: str) -> str:
        """The text with the stand-ins turned back."""
        return "".join(piece for piece, _ in self._tokens(text))

    def positions(self, text: str) -> list[int]:
        """Where in ``back(text)`` the stand-ins were."""
        out: list[int] = []
        position = 0
        for piece, is_data in self._tokens(text):
            if is_data:
                out.extend(range(position, position + len(piece)))
            position += len(piece)
        return out


def _map(value: Any, replace: Callable[[str, str], str], key: str = "") -> Any:
    """A copy with every text replaced; of a key, only what could be part of a spelling."""
    if isinstance(value, str):
        return replace(value, key)
    if isinstance(value, list):
        return [_map(item, replace, key) for item in value]
    if isinstance(value, dict):
        return {replace(name, "role"): _map(item, replace, name) for name, item in value.items()}
    return value


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        yield from _texts(list(value.values()))
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _cut_characters(guarded: list[str]) -> set[str]:
    """At least one character of every spelling, and every one that marks spellings as such."""
    cut = set(_MARKUP)
    for spelling in guarded:
        if not cut & set(spelling):
            cut.update(char for char in spelling if not char.isalnum() and not char.isspace())
        if not cut & set(spelling):
            cut.update(spelling)
    return cut


def _printable(text: str, key: str, cut: set[str]) -> Iterable[int]:
    """Every position but white space; of what templates compare, only the cut characters."""
    if key in _TRUSTED_KEYS:
        return _at(text, cut)
    return [i for i, char in enumerate(text) if not char.isspace()]


def _at(text: str, chars: set[str]) -> Iterable[int]:
    return [i for i, char in enumerate(text) if char in chars]


def _spelled(text: str, spelling: re.Pattern[str]) -> Iterable[int]:
    return [i for match in spelling.finditer(text) for i in range(*match.span())]


def _pattern(spellings: list[str]) -> re.Pattern[str]:
    """Matches any of the spellings, the longest first."""
    return re.compile("|".join(map(re.escape, sorted(spellings, key=len, reverse=True))))


def _parts(text: str, data: list[int]) -> list[Part]:
    """The text cut where data begins and ends."""
    flags = bytearray(len(text))
    for position in data:
        flags[position] = 1
    parts: list[Part] = []
    start = 0
    for flag, run in groupby(flags):
        end = start + sum(1 for _ in run)
        parts.append((text[start:end], bool(flag)))
        start = end
    return parts


def _filled(parts: list[Part]) -> list[Part]:
    """White space between two parts of data is data too."""
    out: list[Part] = []
    for i, (text, is_data) in enumerate(parts):
        between = 0 < i < len(parts) - 1 and text.isspace()
        if out and out[-1][1] and (is_data or between):
            out[-1] = (out[-1][0] + text, True)
        else:
            out.append((text, is_data))
    return out
