"""The head of one GGUF file: header, metadata and tensor table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmgen.errors import shown
from llmgen.gguf.cursor import Cursor
from llmgen.gguf.mapping import MappedFile
from llmgen.gguf.metadata import Entry, read_metadata
from llmgen.gguf.problems import CONVERT_AGAIN, CUT_SHORT, problem
from llmgen.gguf.signatures import HEAD_BYTES, looks_like
from llmgen.gguf.tensors import TensorInfo, read_tensors

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 24  # above any page size that a writer would align to
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16

_LEAST_KEY_BYTES = 8 + 4 + 1  # an empty key with a one-byte value
_LEAST_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8  # no name, one dimension


@dataclass(frozen=True, slots=True)
class Part:
    """What one file holds: a whole model, or one part of a split one."""

    file: MappedFile
    version: int
    entries: dict[str, Entry]
    tensors: list[TensorInfo]

    def integer(self, key: str) -> int | None:
        """The whole number stored under ``key``, None if there is no such key."""
        entry = self.entries.get(key)
        if entry is None:
            return None
        if not isinstance(entry.value, int) or isinstance(entry.value, bool):
            found = f"{shown(key)} is of type {entry.type_name}, expected a whole number"
            raise problem(self.file.path, found, CONVERT_AGAIN)
        return entry.value


def read_part(path: Path) -> Part:
    """Map the file at ``path`` and read its head; raises ModelFileError if it is damaged."""
    file = MappedFile(path)
    try:
        return _read(file)
    except BaseException:
        file.close()
        raise


def _read(file: MappedFile) -> Part:
    cursor = Cursor(file.buffer, file.path)
    version = _read_version(cursor)
    n_tensors = cursor.count("tensors", _LEAST_TENSOR_BYTES, MAX_TENSORS)
    n_keys = cursor.count("metadata keys", _LEAST_KEY_BYTES, MAX_KEYS)
    entries = read_metadata(cursor, n_keys)
    _expect_text(cursor, entries.get("general.architecture"), "general.architecture")
    alignment = _alignment(cursor, entries.get("general.alignment"))
    return Part(file, version, entries, read_tensors(cursor, file, n_tensors, alignment))


def _read_version(cursor: Cursor) -> int:
    head = cursor.buffer[:HEAD_BYTES]
    if not head.startswith(MAGIC):
        if MAGIC.startswith(head):
            raise cursor.problem(f"the file has only {len(head)} bytes", CUT_SHORT)
        found = f"this looks like {looks_like(head)}, expected a GGUF model"
        raise cursor.problem(found, "download or convert the model as a .gguf file")
    cursor.skip(len(MAGIC), "the file's magic number")
    version = cursor.u32("the version")
    if version not in VERSIONS:
        raise cursor.problem(*_version_problem(version))
    return version


def _version_problem(version: int) -> tuple[str, str]:
    """What to say of a version that cannot be read: what was found, and what to do."""
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if 1 <= swapped < 1 << 16 and swapped < version:
        return "this is a big-endian GGUF file, expected little-endian", "convert the model for this machine"
    found = f"this is GGUF version {version:,}, expected version 2 or 3"
    if version == 1:
        return found, CONVERT_AGAIN
    return found, "get a newer llmgen, or download the file again if it may be damaged"


def _expect_text(cursor: Cursor, entry: Entry | None, key: str) -> None:
    if entry is not None and entry.type_name != "STRING":
        raise cursor.problem(f"{shown(key)} is of type {entry.type_name}, expected STRING")


def _alignment(cursor: Cursor, entry: Entry | None) -> int:
    """The alignment of tensors in bytes, a power of two."""
    if entry is None:
        return DEFAULT_ALIGNMENT
    value: Any = entry.value
    if entry.type_name != "UINT32":
        raise cursor.problem(f"'general.alignment' is of type {entry.type_name}, expected UINT32")
    if not 1 <= value <= MAX_ALIGNMENT or value & (value - 1):
        raise cursor.problem(
            f"'general.alignment' is {value:,}, expected a power of two up to {MAX_ALIGNMENT:,}"
        )
    return int(value)
