"""The table of tensors in a GGUF file, and where their bytes lie.

Source of the layout: docs/gguf.md in the ggml repository.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod

import numpy as np
import numpy.typing as npt

from llmgen.errors import UnsupportedModelError, shown
from llmgen.gguf.cursor import Cursor
from llmgen.gguf.mapping import MappedFile
from llmgen.gguf.problems import CONVERT_AGAIN, CUT_SHORT
from llmgen.gguf.types import REMOVED_TYPES, WEIGHT_TYPES, GGMLType

MAX_DIMENSIONS = 4
MAX_NAME_BYTES = 255  # ggml allows 63; some programs are built with a higher limit
_MAX_BYTES = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file: what it is and where it lies.

    ``shape`` is in GGUF order, the fastest axis first: (n_columns, n_rows, ...).
    ``address`` is the absolute address of the first of ``nbytes`` bytes, all of them
    inside the mapped file, and ``slack`` the number of bytes of the file after the
    last of them.  Addresses are valid until the file is closed.
    """

    name: str
    shape: tuple[int, ...]
    type: GGMLType
    nbytes: int
    address: int
    slack: int
    _file: MappedFile = field(repr=False, compare=False)

    def check_known(self) -> None:
        """Raise UnsupportedModelError for a type whose id is not known here: its values cannot be read."""
        if self.type.known:
            return
        found = f"the tensor {shown(self.name)} has the type {int(self.type)}"
        if self.type in REMOVED_TYPES:
            raise UnsupportedModelError(
                f"{found} ({self.type.name}), which was removed from the format; "
                "get the model in a current type, or convert it again"
            )
        known = ", ".join(kind.name for kind in WEIGHT_TYPES)
        raise UnsupportedModelError(
            f"{found}, which this llmgen does not know; it knows {known}; "
            "get the model in one of these, or a newer llmgen"
        )

    @property
    def n_elements(self) -> int:
        """Number of values."""
        return prod(self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, that is of ``shape[0]`` values."""
        return self.type.bytes_for(self.shape[0])

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The tensor's bytes, uint8 [nbytes], read-only, not copied.

        Raises ValueError once the file is closed; arrays taken before stay valid.
        """
        start = self.address - self._file.address
        return self._file.bytes[start : start + self.nbytes]


@dataclass(frozen=True, slots=True)
class _Entry:
    """A row of the table as the file has it: ``offset`` counts from the start of the data."""

    name: str
    shape: tuple[int, ...]
    type: GGMLType
    nbytes: int
    offset: int


def read_tensors(cursor: Cursor, file: MappedFile, count: int, alignment: int) -> list[TensorInfo]:
    """Read ``count`` rows of the tensor table at the cursor, and check that the file has their data."""
    entries = [_read_entry(cursor, i, count) for i in range(count)]
    _check_unique(cursor, entries)
    data_start = cursor.position + -cursor.position % alignment
    for entry in entries:
        _check_place(cursor, entry, data_start, alignment)
    entries = _with_unknown_sizes(entries, cursor.size - data_start)
    _check_overlap(cursor, entries)
    return [_locate(file, entry, data_start) for entry in entries]


def _with_unknown_sizes(entries: list[_Entry], data_bytes: int) -> list[_Entry]:
    """Give a tensor of an unknown type all bytes up to the next tensor: it has no more than these."""
    following = dict(pairwise(sorted({*(entry.offset for entry in entries), data_bytes})))
    return [
        e if e.type.known else replace(e, nbytes=following.get(e.offset, e.offset) - e.offset)
        for e in entries
    ]


def _locate(file: MappedFile, entry: _Entry, data_start: int) -> TensorInfo:
    start = data_start + entry.offset
    slack = file.size - start - entry.nbytes
    return TensorInfo(entry.name, entry.shape, entry.type, entry.nbytes, file.address + start, slack, file)


def _read_entry(cursor: Cursor, index: int, count: int) -> _Entry:
    name = cursor.text(f"the name of tensor {index + 1} of {count}", MAX_NAME_BYTES)
    what = f"the tensor {shown(name)}"
    n_dims = cursor.u32(f"the number of dimensions of {what}")
    if not 1 <= n_dims <= MAX_DIMENSIONS:
        raise cursor.problem(f"{what} has {n_dims:,} dimensions, expected 1 to {MAX_DIMENSIONS}")
    shape = tuple(cursor.u64(f"the shape of {what}") for _ in range(n_dims))
    kind = GGMLType(cursor.u32(f"the type of {what}"))
    nbytes = _byte_size(cursor, what, shape, kind)
    return _Entry(name, shape, kind, nbytes, cursor.u64(f"the offset of {what}"))


def _byte_size(cursor: Cursor, what: str, shape: tuple[int, ...], kind: GGMLType) -> int:
    shown = " x ".join(map(str, shape))
    if 0 in shape:
        raise cursor.problem(f"{what} has the shape {shown}, expected no dimension of 0")
    if shape[0] % kind.block_size:
        expected = f"a multiple of {kind.block_size} for {kind.name}"
        found = f"{what} has rows of {shape[0]:,} values, expected {expected}"
        raise cursor.problem(found, CONVERT_AGAIN)
    nbytes = kind.bytes_for(prod(shape))
    if nbytes > _MAX_BYTES or prod(shape) > _MAX_BYTES:
        raise cursor.problem(f"{what} has the shape {shown}, too large to be addressed")
    return nbytes


def _check_unique(cursor: Cursor, entries: list[_Entry]) -> None:
    seen: set[str] = set()
    for entry in entries:
        if entry.name in seen:
            found = f"the tensor {shown(entry.name)} occurs twice, expected once"
            raise cursor.problem(found, CONVERT_AGAIN)
        seen.add(entry.name)


def _check_place(cursor: Cursor, entry: _Entry, data_start: int, alignment: int) -> None:
    what = f"the tensor {shown(entry.name)}"
    if entry.offset % alignment:
        raise cursor.problem(f"{what} has the offset {entry.offset:,}, expected a multiple of {alignment}")
    end = data_start + entry.offset + entry.nbytes
    if end > cursor.size:
        raise cursor.problem(f"{what} ends at byte {end:,}, but the file ends at {cursor.size:,}", CUT_SHORT)


def _check_overlap(cursor: Cursor, entries: list[_Entry]) -> None:
    in_order = sorted(entries, key=lambda entry: entry.offset)
    for first, second in zip(in_order, in_order[1:], strict=False):
        if second.offset < first.offset + first.nbytes:
            names = f"{shown(first.name)} and {shown(second.name)}"
            raise cursor.problem(f"the tensors {names} overlap, expected each to have bytes of its own")
