"""Scores of a key block and its weighted values, for a few rows at once and each kind of cache.

The codes of a scaled kind are multiplied as they are: those of keys as integers (products.py), those of values as
floats.  A scale belongs to one position and one block of a head, so it is applied once for all values of the
block: to the block's part of the score, and to the weight of the position before its values are added.
All are sums in one fixed order, whatever the shape of a pass.
"""

from __future__ import annotations

from typing import Any

from llmgen.backends.cpu.kernels.abi import inline
from llmgen.backends.cpu.kernels.dot import AVX512
from llmgen.backends.cpu.kernels.kv import (
    SCALE_BYTES,
    VECTOR,
    KVKind,
    key_group_bytes,
    padded_codes,
    query_bytes,
)
from llmgen.backends.cpu.kernels.kv.asking import LINE, ask
from llmgen.backends.cpu.kernels.kv.loads import (
    add_sums,
    halves,
    key_step,
    parts_of,
    put_scores,
    value_step,
    zeros,
)
from llmgen.backends.cpu.kernels.kv.products import (
    LOAD,
    load_values,
    product_step,
    put_products,
    zero_sums,
)
from llmgen.backends.cpu.kernels.layout import KEY_BLOCK, KEY_GROUP
from llmgen.backends.cpu.kernels.simd import (
    half_to_f32x16,
    load_f32x16,
    load_i16x16,
    store_f32x16,
)

group_bytes_of, row_bytes_of, query_bytes_of = (
    inline(key_group_bytes),
    inline(padded_codes),
    inline(query_bytes),
)


def scores_of(kind: KVKind, rows: int, groups: int, asks: bool) -> Any:
    """``scores(q, k, coming, s, n_groups, key_dim)``: s[r] = q[r] . k for n_groups * KEY_GROUP keys.

    q: the rows' queries as kv/queries.py leaves them; k: keys of a block; coming: the block that is read after it
    (kv/asking.py), which is asked for if ``asks``; s: f32 [rows][KEY_BLOCK].  n_groups: a multiple of ``groups``.
    """
    return (_scaled_scores if kind.block else _plain_scores)(kind, rows, groups, asks)


def _plain_scores(kind: KVKind, rows: int, groups: int, asks: bool) -> Any:
    nbytes = KEY_GROUP * kind.bits // 8
    # how many values of a key are taken before the next line is asked for
    line = max(LINE // nbytes, 1) if asks else 1 << 40
    zero, put, step = zeros(rows * groups), put_scores(rows, groups), key_step(kind, rows, groups)

    @inline
    def scores(q, k, coming, s, n_groups, key_dim):  # type: ignore[no-untyped-def]
        group_bytes = key_dim * nbytes
        for g in range(0, n_groups, groups):
            p = k + g * group_bytes
            done = g * group_bytes
            acc = zero()
            i = 0
            while i < key_dim:
                if asks:
                    for _ in range(groups):
                        ask(coming, done)
                        done += LINE
                last = min(i + line, key_dim)
                while i < last:
                    acc = step(acc, q + 4 * i, 4 * key_dim, p, group_bytes)
                    p += nbytes
                    i += 1
            put(acc, s + 4 * KEY_GROUP * g)

    return scores


def _scaled_scores(kind: KVKind, rows: int, groups: int, asks: bool) -> Any:
    bits, block, values = kind.bits, kind.block, load_values(kind)
    some, wide = _product_shape(rows, groups)
    zero, step = zero_sums(some, wide), product_step(kind, some, wide)
    put = put_products(some, wide, halves)

    @inline
    def over_rows(q, stride, k, coming, s, n_groups, key_dim):  # type: ignore[no-untyped-def]
        group_bytes = group_bytes_of(key_dim, bits, block)
        for g in range(0, n_groups, wide):
            p = k + g * group_bytes
            done, x = g * group_bytes, q
            for first in range(0, key_dim, block):
                n = min(block, key_dim - first)
                sums = zero()
                for i in range(0, n, values):
                    if asks:
                        for _ in range(wide):
                            ask(coming, done)
                            done += LINE
                    sums = step(sums, x + 2 * i, stride, p, group_bytes)
                    p += LOAD
                x += (n + VECTOR - 1) // VECTOR * VECTOR * 2
                put(sums, x, stride, s + 4 * KEY_GROUP * g, p, group_bytes, first)
                x += 8
                p += SCALE_BYTES * KEY_GROUP
            if asks:
                while done < (g + wide) * group_bytes:
                    ask(coming, done)
                    done += LINE

    @inline
    def scores(q, k, coming, s, n_groups, key_dim):  # type: ignore[no-untyped-def]
        stride = query_bytes_of(key_dim, block)
        for r in range(0, rows, some):
            over_rows(q + r * stride, stride, k, coming, s + 4 * KEY_BLOCK * r, n_groups, key_dim)

    return scores


def _product_shape(rows: int, groups: int) -> tuple[int, int]:
    """How many of a pass's rows and key groups are multiplied together: each has two registers of sums, or four."""
    some = rows if rows <= (4 if AVX512 else 3) else rows // 2
    wide = min(groups, (4 if some <= 2 else 2) if AVX512 else (2 if some == 1 else 1))
    assert rows % some == 0
    assert groups % wide == 0
    return some, wide


@inline
def scale_weights(s, scales, n_groups, out):  # type: ignore[no-untyped-def]
    """out = a row's weights s times the scales of their positions."""
    for g in range(n_groups):
        factor = half_to_f32x16(load_i16x16(scales + KEY_GROUP * SCALE_BYTES * g))
        store_f32x16(out + 64 * g, load_f32x16(s + 64 * g) * factor)


def _sums(kind: KVKind, rows: int, blocks: int, vectors: int, asks: bool) -> Any:
    """``sums(w, v, coming, done, row_bytes, block_bytes, o, state_bytes, first_key, n_keys)``: o += weights . values.

    coming, done: as in ``ask``, before the first position.
    """
    zero, step = zeros(rows * blocks * vectors), value_step(kind, rows, blocks, vectors)
    read = blocks * vectors * VECTOR * kind.bits // 8  # bytes at a position
    lines, positions = max(read // LINE, 1), max(LINE // read, 1)
    add = add_sums(rows, blocks * vectors)

    @inline
    def sums(w, v, coming, done, row_bytes, block_bytes, o, state_bytes, first_key, n_keys):  # type: ignore[no-untyped-def]
        acc = zero()
        for j in range(first_key, n_keys):
            if asks and j % positions == 0:
                for n in range(lines):
                    ask(coming, done + j * read + n * LINE)
            acc = step(acc, w + 4 * j, v + j * row_bytes, block_bytes)
        add(acc, o, state_bytes)

    return sums


def values_of(kind: KVKind, rows: int, vectors: int, asks: bool) -> Any:
    """``values(s, scaled, v, coming, o, state_bytes, first_key, n_keys, width)``: o[r] += s[r] . v.

    s: weights f32 [rows][KEY_BLOCK], of which those of keys first_key..n_keys count; scaled: room for as many
    again; v: values of a block; coming: as in ``scores_of``; o: f32 [width] of the first row, state_bytes apart;
    width: whole vectors.
    """
    if not kind.block:
        return _plain_values(kind, rows, vectors, asks)
    return _scaled_values(kind, rows, vectors, asks)


def _plain_values(kind: KVKind, rows: int, vectors: int, asks: bool) -> Any:
    size = kind.bits // 8
    many, one = _sums(kind, rows, 1, vectors, asks), _sums(kind, rows, 1, 1, False)

    @inline
    def values(s, scaled, v, coming, o, state_bytes, first_key, n_keys, width):  # type: ignore[no-untyped-def]
        row, key_bytes = width * size, coming[2]
        i = 0
        while i + vectors * VECTOR <= width:
            done = key_bytes + KEY_BLOCK * i * size
            many(s, v + i * size, coming, done, row, 0, o + 4 * i, state_bytes, first_key, n_keys)
            i += vectors * VECTOR
        while i < width:
            one(s, v + i * size, coming, 0, row, 0, o + 4 * i, state_bytes, first_key, n_keys)
            i += VECTOR

    return values


def _scaled_values(kind: KVKind, rows: int, vectors: int, asks: bool) -> Any:
    bits, block = kind.bits, kind.block
    together = max(1, vectors * VECTOR // block) if rows == 1 else 1  # blocks at once
    vectors = min(vectors, block // VECTOR)
    parts = parts_of(kind)
    wide, many = _sums(kind, rows, together, vectors, asks), _sums(kind, rows, 1, vectors, asks)
    some = many if vectors == parts else _sums(kind, rows, 1, parts, False)
    half = _sums(kind, rows, 1, 1, False)
    code_bytes = VECTOR * bits // 8
    assert vectors % parts == 0

    @inline
    def values(s, scaled, v, coming, o, state_bytes, first_key, n_keys, width):  # type: ignore[no-untyped-def]
        n_groups = (n_keys + KEY_GROUP - 1) // KEY_GROUP
        p, i = v, 0
        while i < width:
            n = min(block, width - i)
            row = row_bytes_of(n, bits)
            scales = p + KEY_BLOCK * row
            block_bytes = KEY_BLOCK * (row + SCALE_BYTES)
            done = coming[2] + p - v
            if asks:
                for of_scales in range(0, KEY_BLOCK * SCALE_BYTES, LINE):
                    ask(coming, done + KEY_BLOCK * row + of_scales)
            for r in range(rows):
                scale_weights(s + 4 * KEY_BLOCK * r, scales, n_groups, scaled + 4 * KEY_BLOCK * r)
            if together > 1 and i + together * block <= width:
                for b in range(1, together):  # one row
                    out = scaled + 4 * KEY_BLOCK * b
                    scale_weights(s, scales + b * block_bytes, n_groups, out)
                wide(scaled, p, coming, done, row, block_bytes, o + 4 * i, state_bytes, first_key, n_keys)
                p += together * block_bytes
                i += together * block
                continue
            c = 0
            while c + vectors * VECTOR <= n:
                at = p + c // VECTOR * code_bytes
                asked = done + KEY_BLOCK * (c // VECTOR) * code_bytes
                many(scaled, at, coming, asked, row, 0, o + 4 * (i + c), state_bytes, first_key, n_keys)
                c += vectors * VECTOR
            while c + parts * VECTOR <= n:
                at = p + c // VECTOR * code_bytes
                asked = done + KEY_BLOCK * (c // VECTOR) * code_bytes
                some(scaled, at, coming, asked, row, 0, o + 4 * (i + c), state_bytes, first_key, n_keys)
                c += parts * VECTOR
            if c < n:  # the low halves of the bytes only
                at = p + c // VECTOR * code_bytes
                half(scaled, at, coming, 0, row, 0, o + 4 * (i + c), state_bytes, first_key, n_keys)
            p += block_bytes
            i += n

    return values


def rows_of_values(kind: KVKind, rows: int) -> int:
    """How many of a pass's rows take the values together: a load of 4-bit codes fills two vectors for each."""
    return rows if AVX512 or parts_of(kind) == 1 or rows <= 3 else rows // 2
