"""GGUF files put together byte by byte, so that tests can make each of them wrong."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
CODES = {
    U8: "B",
    I8: "b",
    U16: "H",
    I16: "h",
    U32: "I",
    I32: "i",
    F32: "f",
    BOOL: "B",
    U64: "Q",
    I64: "q",
    F64: "d",
}


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return u64(len(raw)) + raw


def value(kind: int, content: object) -> bytes:
    """A metadata value without its type."""
    if kind == STRING:
        assert isinstance(content, str | bytes)
        return string(content)
    return struct.pack("<" + CODES[kind], content)


def array(kind: int, contents: Sequence[object], count: int | None = None) -> bytes:
    """The content of an array; ``contents`` of an array of arrays are such contents."""
    items = (item if kind == ARRAY else value(kind, item) for item in contents)
    return u32(kind) + u64(len(contents) if count is None else count) + b"".join(items)  # type: ignore[arg-type]


def pair(key: str | bytes, kind: int, content: object) -> bytes:
    """A key-value pair; the content of an array is made by :func:`array`."""
    return string(key) + u32(kind) + (content if kind == ARRAY else value(kind, content))  # type: ignore[operator]


def tensor(
    name: str | bytes, shape: Sequence[int], kind: int, offset: int, n_dims: int | None = None
) -> bytes:
    """A row of the tensor table."""
    dims = b"".join(map(u64, shape))
    return string(name) + u32(len(shape) if n_dims is None else n_dims) + dims + u32(kind) + u64(offset)


def small_pairs() -> list[bytes]:
    return [
        pair("general.architecture", STRING, "llama"),
        pair("general.alignment", U32, 32),
        pair("a.flag", BOOL, 1),
        pair("a.flags", ARRAY, array(BOOL, [1, 0])),
        pair("a.numbers", ARRAY, array(F32, [1.5, 2.5, 3.5])),
        pair("a.strings", ARRAY, array(STRING, ["one", "", "x" * 300])),
        pair("a.nested", ARRAY, array(ARRAY, [array(U8, [1, 2]), array(U8, [])])),
    ]


def small_tensors() -> list[bytes]:
    return [tensor("first", [32, 2], 2, 0), tensor("second", [3], 0, 64)]


@dataclass
class Spec:
    """A small valid file; change what should be wrong, and take its bytes."""

    magic: bytes = b"GGUF"
    version: int = 3
    n_tensors: int | None = None
    n_pairs: int | None = None
    pairs: list[bytes] = field(default_factory=small_pairs)
    tensors: list[bytes] = field(default_factory=small_tensors)
    alignment: int = 32
    data: bytes = bytes(range(76))  # Q4_0 [32, 2] is 36 bytes, padded to 64; F32 [3] is 12

    def to_bytes(self) -> bytes:
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_pairs = len(self.pairs) if self.n_pairs is None else self.n_pairs
        head = self.magic + u32(self.version) + u64(n_tensors) + u64(n_pairs)
        head += b"".join(self.pairs) + b"".join(self.tensors)
        return head + bytes(-len(head) % self.alignment) + self.data

    def with_pair(self, *pairs: bytes) -> Spec:
        self.pairs = [*self.pairs, *pairs]
        return self

    def with_tensors(self, *tensors: bytes) -> Spec:
        self.tensors = list(tensors)
        return self
