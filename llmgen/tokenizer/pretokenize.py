"""Cutting a text into pieces by a pre-tokenizer's rules."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from llmgen.tokenizer.pretokenizers import Digits, PreTokenizer
from llmgen.tokenizer.unicode import ASCII, FOLDED, HAN_LETTER, HAN_OTHER, fold, fold_white

_CLASS = re.compile(r"\\p\{(\w+)\}")


def pretokenize(text: str, pre: PreTokenizer) -> list[str]:
    """The pieces of ``text``, in order; joined, they are the text again.  Linear in its length."""
    ends = [len(text)] if text else []
    views = _Views(text)
    for rule in pre.rules:
        if isinstance(rule, Digits):
            ends = _cut_digits(views.of(rule.pattern), rule, ends)
        else:
            ends = _cut(views.of(rule), _compiled(rule), ends)
    start = 0
    pieces = []
    for end in ends:
        pieces.append(text[start:end])
        start = end
    return pieces


class _Views:
    """The three foldings of one text, made when a rule first needs them."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._made: dict[str, str] = {}

    def of(self, rule: str) -> str:
        """The folding of the text that this rule needs."""
        kind = "han" if r"\p{Han}" in rule else "category" if r"\p{" in rule else "white"
        if kind not in self._made:
            text = self._text
            self._made[kind] = fold_white(text) if kind == "white" else fold(text, kind == "han")
        return self._made[kind]


def _cut(view: str, pattern: re.Pattern[str], ends: Iterable[int]) -> list[int]:
    """Cut each piece around the pattern's matches; pieces are given by their ends."""
    out: list[int] = []
    add = out.append
    start = 0
    for end in ends:
        for match in pattern.finditer(view, start, end):
            first, last = match.span()
            if first > start:
                add(first)
            add(last)
            start = last
        if start < end:
            add(end)
        start = end
    return out


def _cut_digits(view: str, rule: Digits, ends: Iterable[int]) -> list[int]:
    """Cut runs of digits at the multiples of three from each run's end."""
    pattern = _compiled(rule.pattern + "+")
    out: list[int] = []
    start = 0
    for end in ends:
        for match in pattern.finditer(view, start, end):
            first, last = match.span()
            cut = first + (last - first) % 3
            if rule.joined:
                out.extend(range(cut if cut > first else cut + 3, last + 1, 3))
            else:
                out.extend(range(cut if cut > start else cut + 3, last, 3))
        if start < end and (not out or out[-1] < end):
            out.append(end)
        start = end
    return out


@cache
def _compiled(rule: str) -> re.Pattern[str]:
    """The rule as a regular expression over its folding of the text."""
    han = r"\p{Han}" in rule
    out = []
    inside = False
    position = 0
    while position < len(rule):
        if match := _CLASS.match(rule, position):
            members = _members(match.group(1), han)
            out.append(members if inside else f"[{members}]")
            position = match.end()
            continue
        if rule[position] == "\\":
            out.append(rule[position : position + 2])
            position += 2
            continue
        inside = rule[position] == "[" or (inside and rule[position] != "]")
        out.append(rule[position])
        position += 1
    return re.compile("".join(out), re.ASCII)


def _members(name: str, han: bool) -> str:
    """The characters that a category folds to, for use inside brackets."""
    letter = FOLDED["L"]
    match name:
        case "Han":
            return HAN_LETTER + HAN_OTHER
        case "Other":
            return ASCII["L"] + letter
        case "Upper":
            return "A-Z" + letter
        case "Lower":
            return "a-z" + letter
        case "L" if han:
            return ASCII["L"] + letter + HAN_LETTER
    return ASCII[name] + FOLDED[name]
