"""Models in several files: NAME-00001-of-00003.gguf and so on.

The first part has the metadata; each part has its own tensor table and says with
``split.no`` (from 0) and ``split.count`` where it belongs.

Source of names and keys: tools/gguf-split in the llama.cpp repository.
"""

from __future__ import annotations

import re
from pathlib import Path

from llmgen.errors import shown
from llmgen.gguf.part import Part
from llmgen.gguf.problems import DOWNLOAD_AGAIN, problem
from llmgen.visible import visible

_NAME = re.compile(
    r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<end>\.gguf)", re.DOTALL | re.IGNORECASE
)
_MOST_PARTS = 99_999
_DOWNLOAD_ALL = "download all parts of the model together"


def check_is_first(part: Part) -> None:
    """Refuse a part of a split model that is not the first, naming the one to open."""
    number = part.integer("split.no")
    if not number or (part.integer("split.count") or 0) < 2:
        return
    path = part.file.path
    match = _NAME.fullmatch(path.name)
    first = f"open {visible(_sibling(match, 1))}" if match else "open the first part"
    raise problem(path, f"this is part {number + 1:,} of a split model, expected the first part", first)


def other_paths(part: Part) -> list[Path]:
    """The other files of the model, next to the first part; raises ModelFileError if one is missing."""
    count = part.integer("split.count") or 1
    path = part.file.path
    if not 1 <= count <= _MOST_PARTS:
        found = f"'split.count' is {count:,}, expected 1 to {_MOST_PARTS:,}"
        raise problem(path, found, DOWNLOAD_AGAIN)
    if count == 1:
        return []
    match = _NAME.fullmatch(path.name)
    if match is None or int(match["number"]) != 1 or int(match["count"]) != count:
        found = (
            f"this is the first of {count:,} parts, expected a name that ends in -00001-of-{count:05}.gguf"
        )
        raise problem(path, found, "restore the names of the parts")
    return [_existing(path, _sibling(match, number), number, count) for number in range(2, count + 1)]


def check_belongs(part: Part, index: int, count: int) -> None:
    """Refuse a file that is not part ``index`` (from 0) of ``count``."""
    number, said_count = part.integer("split.no"), part.integer("split.count")
    if (number, said_count) == (index, count):
        return
    found = (
        "it says nothing about parts"
        if number is None
        else f"it says it is part {number + 1} of {said_count}"
    )
    raise problem(part.file.path, f"{found}, expected part {index + 1} of {count}", _DOWNLOAD_ALL)


def check_together(parts: list[Part]) -> None:
    """Check the parts of one model against one another: no tensor twice, none missing."""
    where: dict[str, Path] = {}
    for part in parts:
        for tensor in part.tensors:
            if tensor.name in where:
                found = f"the tensor {shown(tensor.name)} is also in {visible(where[tensor.name].name)}"
                raise problem(part.file.path, f"{found}, expected it in one part only", _DOWNLOAD_ALL)
            where[tensor.name] = part.file.path
    expected = parts[0].integer("split.tensors.count")
    if len(parts) > 1 and expected is not None and expected != len(where):
        found = f"the {len(parts)} parts have {len(where):,} tensors, expected {expected:,}"
        raise problem(parts[0].file.path, found, _DOWNLOAD_ALL)


def _sibling(match: re.Match[str], number: int) -> str:
    return f"{match['stem']}-{number:05}-of-{match['count']}{match['end']}"


def _existing(first: Path, name: str, number: int, count: int) -> Path:
    path = first.with_name(name)
    if not path.exists():
        found = f"part {number:,} of {count:,} is missing, expected {visible(name)} in the same folder"
        raise problem(first, found, _DOWNLOAD_ALL)
    return path
