"""What llama.cpp keeps of a sequence, made longer, so that a long context need not be computed to be timed.

The layout is that of ``llama_state_seq_get_data`` for a cache without sliding windows (``state_write`` in llama.cpp's
src/llama-kv-cache.cpp): a magic number and the sequence's number, how many streams and cells there are; for each cell
its position, and the sequences that have it; whether values are transposed, and how many layers there are; then for
the keys of each layer and again for the values the type, the bytes of a cell and the cells.  Transposed values (without
flash attention) have the bytes of a number, how many numbers a cell has, and for each the cells.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

_HEAD, _CELL, _LAYERS, _TENSOR, _TURNED = (struct.Struct(f) for f in ("<IiII", "<iIi", "<II", "<iQ", "<iII"))


def repeated(state: bytes, n: int) -> bytes:
    """A sequence of n cells from one with fewer, whose keys and values come again and again."""
    magic, sequence, streams, cells = _HEAD.unpack_from(state)
    at = _HEAD.size + cells * _CELL.size
    transposed, layers = _LAYERS.unpack_from(state, at)
    if streams != 1:
        raise SystemExit("llama.cpp's cache has several streams, and cannot be filled")
    out = [_HEAD.pack(magic, sequence, 1, n), *(_CELL.pack(position, 1, sequence) for position in range(n))]
    out.append(state[at : at + _LAYERS.size])
    at += _LAYERS.size
    for tensor in range(2 * layers):
        if transposed and tensor >= layers:
            head, (_, row, rows) = _TURNED.size, _TURNED.unpack_from(state, at)
        else:
            head, (_, row), rows = _TENSOR.size, _TENSOR.unpack_from(state, at), 1
        out.append(state[at : at + head])
        at += head
        for _ in range(rows):
            out.append((state[at : at + row * cells] * (n // cells + 1))[: row * n])
            at += row * cells
    return b"".join(out)


def fill(api: Any, context: Any, n: int) -> None:
    """Give sequence 0 n tokens, made of those that it has; api: the module ``llama_cpp``."""
    size = api.llama_state_seq_get_size(context, 0)
    room = (ctypes.c_uint8 * size)()
    written = api.llama_state_seq_get_data(context, room, size, 0)
    if not written:
        raise SystemExit("llama.cpp does not give its cache away, so it cannot be filled")
    longer = repeated(bytes(room)[:written], n)
    if not api.llama_state_seq_set_data(
        context, (ctypes.c_uint8 * len(longer)).from_buffer_copy(longer), len(longer), 0
    ):
        raise SystemExit("llama.cpp does not take a cache that was filled")
