"""Writing the head of a GGUF file: header, metadata and tensor table.

Metadata that is carried over from another file is copied as bytes.  The gguf package's writer
takes Python values instead: it guesses the types of arrays, refuses empty ones, and cannot write
a string that is not UTF-8.

Source of the layout: docs/gguf.md in the ggml repository.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from struct import pack

from llmgen.gguf.metadata import ValueType
from llmgen.gguf.types import GGMLType

_MAGIC, _VERSION = b"GGUF", 3


@dataclass(frozen=True)
class NewTensor:
    """A tensor of a file that is to be written; ``shape`` has the fastest axis first."""

    name: str
    shape: tuple[int, ...]
    type: GGMLType

    @property
    def nbytes(self) -> int:
        return self.type.bytes_for(prod(self.shape))


def u32_pair(key: str, value: int) -> bytes:
    """A key with a UINT32."""
    return _text(key) + pack("<II", ValueType.UINT32, value)


def head(pairs: Sequence[bytes], tensors: Sequence[NewTensor], alignment: int) -> bytes:
    """All that stands before the first tensor's data, padded to ``alignment``.

    The data must follow in the order of ``tensors``, each padded to ``alignment``.
    """
    offset, table = 0, []
    for tensor in tensors:
        dimensions = pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        table.append(_text(tensor.name) + dimensions + pack("<IQ", tensor.type, offset))
        offset += tensor.nbytes + padding(tensor.nbytes, alignment)
    start = _MAGIC + pack("<IQQ", _VERSION, len(tensors), len(pairs))
    whole = b"".join((start, *pairs, *table))
    return whole + bytes(padding(len(whole), alignment))


def padding(n_bytes: int, alignment: int) -> int:
    """The bytes between ``n_bytes`` and the next multiple of ``alignment``."""
    return -n_bytes % alignment


def _text(text: str) -> bytes:
    raw = text.encode()
    return pack("<Q", len(raw)) + raw
