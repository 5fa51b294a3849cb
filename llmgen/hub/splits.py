"""The names of a split model's files: ``NAME-00002-of-00005.gguf`` (llama.cpp's llama_split_path)."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SPLIT = re.compile(
    r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<parts>\d{5})(?P<end>\.gguf(?:\?.*)?)?$", re.IGNORECASE | re.DOTALL
)
_MOST_PARTS = 10_000


@dataclass(frozen=True)
class Split:
    """One part of a split model: what its parts are called, its number from 1, and how many there are."""

    stem: str
    part: int
    parts: int
    end: str = ""

    def name(self, part: int) -> str:
        """The name of another part."""
        return f"{self.stem}-{part:05d}-of-{self.parts:05d}{self.end}"

    def names(self) -> list[str]:
        """The names of all parts, in order."""
        return [self.name(part) for part in range(1, self.parts + 1)]


def split_of(name: str) -> Split | None:
    """What the name (with or without ``.gguf``) of a part says; None for the name of a whole model."""
    found = _SPLIT.match(name)
    if not found:
        return None
    split = Split(found["stem"], int(found["part"]), int(found["parts"]), found["end"] or "")
    return split if 1 <= split.part <= split.parts <= _MOST_PARTS else None


def first_part(name: str) -> str:
    """The name of a split model's first part; another name as it is."""
    split = split_of(name)
    return split.name(1) if split else name
