"""The key-value pairs at the head of a GGUF file.

Source of the layout: docs/gguf.md in the ggml repository.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from llmgen.errors import shown
from llmgen.gguf.cursor import MAX_ARRAYS, MAX_KEY_BYTES, MAX_STRING_BYTES, Cursor
from llmgen.gguf.problems import CONVERT_AGAIN
from llmgen.gguf.strings import read_strings

MAX_DEPTH = 4
"""How deeply arrays may be nested; no known model has more than one level."""


class ValueType(IntEnum):
    """The types of metadata values, by their id in the file."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


class Entry(NamedTuple):
    """A metadata value and the name of its type, as ``UINT32`` or ``ARRAY[STRING]``.

    ``start`` and ``stop``: where the file has the key with its value, for one at the top level.
    """

    value: Any
    type_name: str
    start: int = 0
    stop: int = 0


_NUMBERS = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "B",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}
_STRUCTS = {kind: Struct("<" + code) for kind, code in _NUMBERS.items()}
_DTYPES = {kind: np.dtype("<" + code) for kind, code in _NUMBERS.items()}
_KINDS = {int(kind): kind for kind in ValueType}

# The fewest bytes an element can take: a string has its length, an array its type and length.
_LEAST_BYTES = {ValueType.STRING: 8, ValueType.ARRAY: 12} | {
    kind: form.size for kind, form in _STRUCTS.items()
}


def read_metadata(cursor: Cursor, count: int) -> dict[str, Entry]:
    """Read ``count`` key-value pairs at the cursor, in file order."""
    entries: dict[str, Entry] = {}
    for i in range(count):
        start = cursor.position
        key = cursor.text(f"key {i + 1} of {count}", MAX_KEY_BYTES)
        if key in entries:
            raise cursor.problem(f"the key {shown(key)} occurs twice, expected once", CONVERT_AGAIN)
        what = f"the value of {shown(key)}"
        value = _read_value(cursor, _read_kind(cursor, what), what, 0)
        entries[key] = value._replace(start=start, stop=cursor.position)
    return entries


def _read_kind(cursor: Cursor, what: str) -> ValueType:
    number = cursor.u32(f"the type of {what}")
    kind = _KINDS.get(number)
    if kind is None:
        raise cursor.problem(f"{what} has the type {number:,}, expected 0 to {max(_KINDS)}")
    return kind


def _read_value(cursor: Cursor, kind: ValueType, what: str, depth: int) -> Entry:
    if kind is ValueType.ARRAY:
        return _read_array(cursor, what, depth)
    if kind is ValueType.STRING:
        n_bytes = cursor.count(f"bytes in {what}", 1, MAX_STRING_BYTES)
        return Entry(cursor.bytes(n_bytes, what).decode("utf-8", "replace"), kind.name)
    value = cursor.number(_STRUCTS[kind], what)
    if kind is ValueType.BOOL:
        if value > 1:
            raise cursor.problem(f"{what} has a truth value of {value}, expected 0 or 1")
        value = bool(value)
    return Entry(value, kind.name)


def _read_array(cursor: Cursor, what: str, depth: int) -> Entry:
    if depth >= MAX_DEPTH:
        raise cursor.problem(f"{what} has arrays within arrays deeper than {MAX_DEPTH} levels")
    kind = _read_kind(cursor, what)
    count = cursor.count(f"elements in {what}", _LEAST_BYTES[kind])
    if kind is ValueType.ARRAY:
        return _read_nested(cursor, count, what, depth)
    name = f"ARRAY[{kind.name}]"
    if kind is ValueType.STRING:
        return Entry(read_strings(cursor, count, what), name)
    # the array uses a copy of its bytes, so it is aligned and outlives the file
    dtype = _DTYPES[kind]
    values = np.frombuffer(cursor.bytes(count * dtype.itemsize, what), dtype)
    if kind is ValueType.BOOL:
        if count and values.max() > 1:
            raise cursor.problem(f"{what} has a truth value of {values.max()}, expected 0 or 1")
        values = values.view(np.bool_)
    return Entry(values, name)


def _read_nested(cursor: Cursor, count: int, what: str, depth: int) -> Entry:
    """An array of arrays, each of which names its own type."""
    if count > cursor.arrays_left:
        raise cursor.problem(
            f"{what} brings the file to over {MAX_ARRAYS:,} arrays within arrays, expected fewer"
        )
    cursor.arrays_left -= count
    inner = [_read_array(cursor, what, depth + 1) for _ in range(count)]
    names = {entry.type_name for entry in inner}
    name = names.pop() if len(names) == 1 else "ARRAY"
    return Entry([entry.value for entry in inner], f"ARRAY[{name}]")
