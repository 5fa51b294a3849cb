"""Arrays of strings, located in one pass and decoded individually on access."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from struct import Struct
from typing import TypeAlias, overload

import numpy as np
import numpy.typing as npt

from llmgen.gguf.cursor import MAX_STRINGS, Cursor
from llmgen.gguf.problems import CUT_SHORT

_U64 = Struct("<Q")
_PREFIX = _U64.size
_RUN = 4096
_Offsets: TypeAlias = "npt.NDArray[np.int64]"


class StringArray(Sequence[str]):
    """The strings of one metadata array; even 262,144 of a vocabulary cost nothing until they are read.

    Text that is not UTF-8 gets replacement characters; ``raw`` has the bytes.  The array
    has its own copy of the bytes and outlives the file.
    """

    __slots__ = ("_blob", "_starts")

    def __init__(self, blob: bytes, starts: array[int]) -> None:
        """``starts`` has the offset in ``blob`` of each length prefix, and the end of the blob."""
        self._blob = blob
        self._starts = starts

    def __len__(self) -> int:
        return len(self._starts) - 1

    @property
    def nbytes(self) -> int:
        """The bytes of all strings with their length prefixes."""
        return len(self._blob)

    def raw(self, index: int) -> bytes:
        """The bytes of string ``index``."""
        n = len(self)
        if not -n <= index < n:
            raise IndexError(f"string {index} of {n}")
        index %= n
        return self._blob[self._starts[index] + _PREFIX : self._starts[index + 1]]

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.raw(index).decode("utf-8", "replace")

    def iter_raw(self) -> Iterator[bytes]:
        """The bytes of all strings in order."""
        blob = self._blob
        return (blob[start + _PREFIX : end] for start, end in pairwise(self._starts))

    def __iter__(self) -> Iterator[str]:
        blob = self._blob
        return (
            blob[start + _PREFIX : end].decode("utf-8", "replace") for start, end in pairwise(self._starts)
        )

    def __eq__(self, other: object) -> bool:
        """Equal to a list, tuple or string array with the same strings."""
        if not isinstance(other, (StringArray, list, tuple)):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(repr(text[:40]) for text in self[:3])
        return f"<{len(self)} strings: {shown}{', ...' if len(self) > 3 else ''}>"


def read_strings(cursor: Cursor, count: int, what: str) -> StringArray:
    """Read the array of ``count`` strings at the cursor."""
    if count > cursor.strings_left:
        raise cursor.problem(f"{what} brings the file to over {MAX_STRINGS:,} strings, expected fewer")
    cursor.strings_left -= count
    begin = position = cursor.position
    starts = array("q")
    while len(starts) < count:
        run = min(_RUN, count - len(starts))
        where = _short_run(cursor, position, run)
        if where is None:
            where = _any_run(cursor, position, run)
        if where is None:
            raise cursor.problem(
                f"{what} reaches past the end of the file, at byte {cursor.size:,}", CUT_SHORT
            )
        position = int(where[-1])
        starts.frombytes((where[:-1] - begin).tobytes())
    starts.append(position - begin)
    return StringArray(cursor.bytes(position - begin, what), starts)


def _short_run(cursor: Cursor, position: int, count: int) -> _Offsets | None:
    """Where ``count`` strings start, and the end of the last; None if one has 256 bytes or more.

    Twice as fast as reading whole lengths: use the lowest byte of each, then check for all
    of them at once that the other seven are zero.
    """
    buffer = cursor.buffer
    found = [position]
    add = found.append
    try:
        for _ in range(count):
            position += buffer[position] + _PREFIX
            add(position)
    except IndexError:
        return None
    if position > cursor.size:
        return None
    # Every byte of the file as the start of a 64-bit number: an unaligned gather.
    shape = (cursor.size - _PREFIX + 1,)
    numbers: npt.NDArray[np.uint64] = np.ndarray(shape, "<u8", buffer, strides=(1,))
    where = np.array(found, dtype=np.int64)
    return None if (numbers[where[:-1]] > 255).any() else where


def _any_run(cursor: Cursor, position: int, count: int) -> _Offsets | None:
    """Where ``count`` strings start, and the end of the last; None if that is past the file's end."""
    unpack = _U64.unpack_from
    buffer = cursor.buffer
    size = cursor.size
    found = [position]
    for _ in range(count):
        if position + _PREFIX > size:
            return None
        position += unpack(buffer, position)[0] + _PREFIX
        found.append(position)
    return np.array(found, dtype=np.int64) if position <= size else None
