"""Keys and values of a cache -> float32, for a kernel that uses a block several times: prompts, and latent.py."""

from __future__ import annotations

from typing import Any

from llmgen.backends.cpu.kernels.abi import inline
from llmgen.backends.cpu.kernels.kv import SCALE_BYTES, VECTOR, KVKind, key_group_bytes, padded_codes
from llmgen.backends.cpu.kernels.kv.loads import load_bytes, load_of
from llmgen.backends.cpu.kernels.kv.products import LOAD, load_values, numbers_of
from llmgen.backends.cpu.kernels.layout import KEY_BLOCK, KEY_GROUP
from llmgen.backends.cpu.kernels.simd import half_to_f32x16, load_f16, load_i16x16, splat, store_f32x16

group_bytes_of, row_bytes_of = inline(key_group_bytes), inline(padded_codes)


def decode_keys_of(kind: KVKind) -> Any:
    """``decode(group, out, dim)``: a group of 16 keys of dim values -> f32 [dim][16]."""
    block = kind.block
    if not block:
        return _widen_keys(kind)
    load, values = numbers_of(kind), load_values(kind)

    @inline
    def decode(group, out, dim):  # type: ignore[no-untyped-def]
        p = group
        for first in range(0, dim, block):
            last = min(first + block, dim)
            scales = p + (last - first + values - 1) // values * LOAD
            d = half_to_f32x16(load_i16x16(scales))
            for i in range(first, last, values):
                at = i
                for v in load(p):
                    if at < last:
                        store_f32x16(out + 64 * at, v * d)
                    at += 1
                p += LOAD
            p = scales + SCALE_BYTES * KEY_GROUP

    return decode


def _widen_keys(kind: KVKind) -> Any:
    load, nbytes = load_of(kind), load_bytes(kind)

    @inline
    def widen(group, out, dim):  # type: ignore[no-untyped-def]
        for i in range(dim):
            for v in load(group + i * nbytes):
                store_f32x16(out + 64 * i, v)

    return widen


def decode_values_of(kind: KVKind) -> Any:
    """``decode(values, out, n, width)``: the first n values of a block -> f32 [n][width]; width: whole vectors."""
    load, nbytes, bits, block = load_of(kind), load_bytes(kind), kind.bits, kind.block

    @inline
    def decode(values, out, n, width):  # type: ignore[no-untyped-def]
        p = values
        for first in range(0, width, block):
            last = min(first + block, width)
            row = row_bytes_of(last - first, bits)
            scales = p + KEY_BLOCK * row
            for j in range(n):
                d = splat(load_f16(scales + SCALE_BYTES * j))
                at = first
                for i in range(0, row, nbytes):
                    for v in load(p + j * row + i):
                        if at < last:
                            store_f32x16(out + 4 * (j * width + at), v * d)
                        at += VECTOR
            p = scales + SCALE_BYTES * KEY_BLOCK

    @inline
    def widen(values, out, n, width):  # type: ignore[no-untyped-def]
        for i in range(n * width // VECTOR):
            for v in load(values + i * nbytes):
                store_f32x16(out + 64 * i, v)

    return decode if block else widen


def keys_as_floats(kind: KVKind) -> Any:
    """``keys(p, room, dim)``: where the keys of a block lie as f32 [groups][dim][16], in the cache or in room."""
    decode, bits, block = decode_keys_of(kind), kind.bits, kind.block

    @inline
    def decoded(p, room, dim):  # type: ignore[no-untyped-def]
        nbytes = group_bytes_of(dim, bits, block)
        for g in range(KEY_BLOCK // KEY_GROUP):
            decode(p + g * nbytes, room + 64 * g * dim, dim)
        return room

    @inline
    def as_they_are(p, room, dim):  # type: ignore[no-untyped-def]
        return p

    return as_they_are if kind.key == "f32" else decoded


def values_as_floats(kind: KVKind) -> Any:
    """``values(p, room, n, width)``: where the first n values of a block lie as f32 [n][width]."""
    decode = decode_values_of(kind)

    @inline
    def decoded(p, room, n, width):  # type: ignore[no-untyped-def]
        decode(p, room, n, width)
        return room

    @inline
    def as_they_are(p, room, n, width):  # type: ignore[no-untyped-def]
        return p

    return as_they_are if kind.key == "f32" else decoded
