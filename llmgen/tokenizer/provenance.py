"""Which parts of a rendered chat come from the messages.

Text in a message must never become a control token, so encoding a prompt requires knowing
what the template wrote and what it copied.  A template is a program: it trims, cuts,
reorders, changes case, encodes as JSON, and tests what a text contains.  Markers around a
text would interfere with that, and a subclass of str is lost in the first operation.

So the conversation is rendered twice.  The first rendering is the prompt.  For the second,
the characters of the messages are replaced, one for one, by *stand-ins*: code points of the
private use areas that occur nowhere in the conversation or the template, and that no text
operation treats specially.  With the stand-ins replaced back, the second rendering must
equal the first; then the origin of every character is known.  If it does not, because the
template looked at characters that were replaced, fewer are replaced:

1. every character of the texts except white space: the parts are whole texts;
2. only characters that spellings of control tokens consist of (``<``, ``|`` ...): enough to
   find every such spelling that a message contributes to, whatever the template did;
3. the spellings themselves, if rendering 2 shows that the template wrote all others.

If a template behaves differently over the characters of 2 and makes the messages form a
spelling that they did not contain, its rendering of 2 becomes the prompt: the template then
saw stand-ins instead of, say, ``<``.  That prompt is safe, and the same as for a message
that says the same in other words.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any

from llmgen.errors import TemplateError
from llmgen.tokenizer.budget import Stopped
from llmgen.tokenizer.partition import Span

Part = tuple[str, bool]
"""A stretch of a prompt, and whether it is data."""

_MARKUP = "<>[]{}|\uff5c\u2581"
"""What spellings of control tokens consist of, if no vocabulary is given."""

_TRUSTED_KEYS = frozenset(["role", "type"])
"""Keys whose values templates compare and callers choose from a list."""

# Private use areas.  The first is in the basic plane, where JSON escapes are shortest.
_SPARE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))

_ESCAPE = re.compile(r"\\u[0-9a-f]{4}")

Run = Callable[[Any, dict[str, Any]], str]
"""Renders a conversation and the tools beside it."""

Replace = Callable[[str, str], str]
"""From a text and its key to the text with stand-ins."""


def split_by_origin(
    run: Run, messages: Any, tools: dict[str, Any], known: str, guarded: list[str]
) -> list[Part]:
    """Render, and cut the prompt into parts; ``known`` is text whose characters must not be stand-ins."""
    prompt = run(messages, tools)
    chars = set().union(*_texts([messages, tools]))
    cut = _cut_characters(guarded)
    if guarded and not cut & chars:
        # Nothing in the messages can be taken for a control token.
        return _parts(prompt, [])
    # Escapes that are text already must not be taken for those of stand-ins.
    written_out = set(_ESCAPE.findall("\n".join([known, *_texts([messages, tools])])))
    stand_ins = _StandIns(chars, set(known) | {json.loads(f'"{escape}"') for escape in written_out})
    spelling = _pattern(guarded or sorted(_MARKUP))
    every = stand_ins.table(char for char in chars if not char.isspace())
    some = stand_ins.table(chars & cut)

    def render(replace: Replace) -> str | None:
        """The prompt with stand-ins; None if the template fails over them."""
        try:
            return run(_map(messages, replace), _map(tools, replace))
        except Stopped:
            raise
        except TemplateError:
            return None

    whole = render(lambda text, key: text.translate(some if key in _TRUSTED_KEYS else every))
    if whole is not None and stand_ins.back(whole) == prompt:
        return _filled(_parts(prompt, stand_ins.spans(whole)))
    safe = render(lambda text, _: text.translate(some))
    if safe is None:
        raise TemplateError(
            "the chat template fails when a message has unusual characters, so what it wrote cannot be told "
            "from what it copied; give another template"
        )
    if stand_ins.back(safe) == prompt:
        return _parts(prompt, stand_ins.spans(safe))
    written = spelling.findall(safe)
    if spelling.findall(prompt) == written:
        return _parts(prompt, [])
    exact = render(lambda text, _: spelling.sub(lambda match: match.group().translate(every), text))
    if exact is not None and stand_ins.back(exact) == prompt and spelling.findall(exact) == written:
        return _parts(prompt, stand_ins.spans(exact))
    return _parts(stand_ins.back(safe), stand_ins.spans(safe))


class _StandIns:
    """Pairs characters with code points that occur nowhere else."""

    def __init__(self, chars: set[str], known: set[str]) -> None:
        """``chars`` get stand-ins, which are none of them and none of ``known``."""
        used = chars | known
        free = (point for area in _SPARE for point in area if chr(point) not in used)
        # Conversations of more than 130,000 different characters do without the rest.
        self._of = dict(zip(sorted(chars), map(chr, free), strict=False))
        self._origin = {ord(stand_in): char for char, stand_in in self._of.items()}
        # JSON that may hold ASCII only writes a stand-in as an escape, and the character
        # itself as one too if it is beyond ASCII.
        self._escapes = {
            json.dumps(stand_in)[1:-1]: json.dumps(char)[1:-1] for char, stand_in in self._of.items()
        }

    def table(self, chars: Iterable[str]) -> dict[int, str]:
        """For ``str.translate``: these characters to their stand-ins."""
        return {ord(char): self._of[char] for char in chars if char in self._of}

    def back(self, text: str) -> str:
        """The text with the stand-ins turned back."""
        return self._unescaped(text.translate(self._origin))[0]

    def spans(self, text: str) -> list[Span]:
        """Where in ``back(text)`` the stand-ins were."""
        found = [match.span() for match in self._pattern.finditer(text)]
        plain, escaped = self._unescaped(text.translate(self._origin))
        if not escaped:
            return found
        # Every escape is longer than what it stands for: move the others to the left.
        out: list[Span] = [(new, new + size) for _, _, new, size in escaped]
        olds = [old_end for _, old_end, _, _ in escaped]
        for first, last in found:
            at = bisect_right(olds, first)
            shift = escaped[at - 1][1] - escaped[at - 1][2] - escaped[at - 1][3] if at else 0
            out.append((first - shift, last - shift))
        return sorted(out)

    def _unescaped(self, text: str) -> tuple[str, list[tuple[int, int, int, int]]]:
        """The text without escapes of stand-ins, and for each: old first and last, new first, new size."""
        if "\\u" not in text:
            return text, []
        pattern = re.compile("|".join(map(re.escape, self._escapes)) or "(?!)")
        out: list[str] = []
        moved: list[tuple[int, int, int, int]] = []
        old = new = 0
        for match in pattern.finditer(text):
            char = self._escapes[match.group()]
            out += [text[old : match.start()], char]
            new += match.start() - old
            moved.append((*match.span(), new, len(char)))
            new += len(char)
            old = match.end()
        return "".join([*out, text[old:]]), moved

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(f"[{''.join(map(chr, self._origin))}]+" if self._origin else "(?!)")


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


def _pattern(spellings: list[str]) -> re.Pattern[str]:
    """Matches any of the spellings, the longest first."""
    return re.compile("|".join(map(re.escape, sorted(spellings, key=len, reverse=True))))


def _parts(text: str, data: list[Span]) -> list[Part]:
    """The text, cut where data begins and ends."""
    parts: list[Part] = []
    start = 0
    for first, last in data:
        if first > start:
            parts.append((text[start:first], False))
        if parts and parts[-1][1]:
            parts[-1] = (parts[-1][0] + text[first:last], True)
        else:
            parts.append((text[first:last], True))
        start = last
    if start < len(text):
        parts.append((text[start:], False))
    return parts


def _filled(parts: list[Part]) -> list[Part]:
    """White space between two parts of data is data too."""
    out: list[Part] = []
    run: list[str] = []
    for i, (text, is_data) in enumerate(parts):
        between = 0 < i < len(parts) - 1 and text.isspace()
        if is_data or between:
            run.append(text)
            continue
        if run:
            out.append(("".join(run), True))
            run = []
        out.append((text, False))
    return [*out, ("".join(run), True)] if run else out
