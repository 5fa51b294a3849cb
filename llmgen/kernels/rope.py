"""Rotary position embedding, and the step that concatenates keys and values to the cache.

The table holds for each position n_rot cosines and n_rot signed sines, so that a
rotation is  out[i] = x[i] * cos[i] + x[partner(i)] * sin[i].  The partner is the
neighbour (pairs 2i, 2i + 1: "norm") or the value half a head away ("neox").
"""

from __future__ import annotations

import numpy as np

from llmgen.kernels.abi import (
    RUN_CACHES,
    RUN_POSITIONS,
    arg,
    arg_f64,
    inline,
    run_field,
    step,
)
from llmgen.kernels.layout import KEY_BLOCK, KEY_GROUP
from llmgen.kernels.norms import tokens_of
from llmgen.kernels.simd import (
    f32x16,
    fma,
    load_f32,
    load_f32x16,
    load_i64,
    shuffle,
    splat,
    store_f16,
    store_f32,
    store_f32x16,
)

swap_neighbours = shuffle(f32x16, [i ^ 1 for i in range(16)])


@inline
def rotate_neighbours(x, row, n_rot):  # type: ignore[no-untyped-def]
    """Rotate n_rot values at x in pairs (2i, 2i + 1)."""
    whole = n_rot // 16 * 16
    sines = row + 4 * n_rot
    for i in range(0, 4 * whole, 64):
        v = load_f32x16(x + i)
        store_f32x16(x + i, fma(v, load_f32x16(row + i), swap_neighbours(v) * load_f32x16(sines + i)))
    for i in range(whole, n_rot, 2):
        a, b = load_f32(x + 4 * i), load_f32(x + 4 * i + 4)
        store_f32(x + 4 * i, a * load_f32(row + 4 * i) + b * load_f32(sines + 4 * i))
        store_f32(x + 4 * i + 4, b * load_f32(row + 4 * i + 4) + a * load_f32(sines + 4 * i + 4))


@inline
def rotate_halves(x, row, n_rot):  # type: ignore[no-untyped-def]
    """Rotate n_rot values at x in pairs (i, i + n_rot / 2)."""
    half = n_rot // 2
    whole = half // 16 * 16
    sines = row + 4 * n_rot
    for i in range(0, 4 * whole, 64):
        j = i + 4 * half
        a, b = load_f32x16(x + i), load_f32x16(x + j)
        store_f32x16(x + i, fma(a, load_f32x16(row + i), b * load_f32x16(sines + i)))
        store_f32x16(x + j, fma(b, load_f32x16(row + j), a * load_f32x16(sines + j)))
    for i in range(4 * whole, 4 * half, 4):
        j = i + 4 * half
        a, b = load_f32(x + i), load_f32(x + j)
        store_f32(x + i, a * load_f32(row + i) + b * load_f32(sines + i))
        store_f32(x + j, b * load_f32(row + j) + a * load_f32(sines + j))


# Arguments of rope, in order.
X, X_STRIDE, FIRST, LAST, HEAD_DIM, N_ROT, NEOX, TABLE, SCALE, TOKEN_SCALE, SPLIT, RUN = range(12)


@step
def rope(args: int, thread: int, n_threads: int) -> None:
    """Rotate heads FIRST..LAST of every token in place by its position, then multiply them by SCALE.

    TOKEN_SCALE: 0, or the address of one more factor per position (float32).
    """
    run = arg(args, RUN)
    positions = run_field(run, RUN_POSITIONS)
    head_dim = arg(args, HEAD_DIM)
    n_rot = arg(args, N_ROT)
    first, last = tokens_of(args, arg(args, SPLIT), run, thread, n_threads)
    for t in range(first, last):
        position = load_i64(positions + 8 * t)
        row = arg(args, TABLE) + position * n_rot * 8
        scale = np.float32(arg_f64(args, SCALE))
        if arg(args, TOKEN_SCALE):
            scale *= load_f32(arg(args, TOKEN_SCALE) + 4 * position)
        for h in range(arg(args, FIRST), arg(args, LAST)):
            x = arg(args, X) + t * arg(args, X_STRIDE) + 4 * h * head_dim
            if n_rot:
                if arg(args, NEOX):
                    rotate_halves(x, row, n_rot)
                else:
                    rotate_neighbours(x, row, n_rot)
            if scale != np.float32(1.0):
                whole = head_dim // 16 * 16
                for i in range(0, 4 * whole, 64):
                    store_f32x16(x + i, load_f32x16(x + i) * splat(scale))
                for i in range(whole, head_dim):
                    store_f32(x + 4 * i, load_f32(x + 4 * i) * scale)


# Arguments of store, in order.  K_AT, V_AT: bytes from the sequence's cache base to this layer's keys and values.
(
    STORE_K,
    STORE_K_STRIDE,
    STORE_V,
    STORE_V_STRIDE,
    STORE_FIRST,
    STORE_LAST,
    STORE_HEAD_DIM,
    STORE_K_AT,
    STORE_V_AT,
    STORE_BLOCKS,
    STORE_SPLIT,
    STORE_RUN,
) = range(12)


def _store(put, size):  # type: ignore[no-untyped-def]
    def store(args: int, thread: int, n_threads: int) -> None:
        """Concatenate this run's keys and values (heads FIRST..LAST) to the cache, each at its position.

        keys: per head [BLOCKS * groups of a block][head_dim][16 positions]; values: per head
        [BLOCKS * KEY_BLOCK positions][head_dim rounded up to 16]; position p lives in block
        (p // KEY_BLOCK) % BLOCKS.
        """
        run = arg(args, STORE_RUN)
        head_dim = arg(args, STORE_HEAD_DIM)
        width = (head_dim + 15) // 16 * 16
        blocks = arg(args, STORE_BLOCKS)
        first, last = tokens_of(args, arg(args, STORE_SPLIT), run, thread, n_threads)
        for t in range(first, last):
            position = load_i64(run_field(run, RUN_POSITIONS) + 8 * t)
            base = load_i64(run_field(run, RUN_CACHES) + 8 * t)
            slot = (position // KEY_BLOCK) % blocks * KEY_BLOCK + position % KEY_BLOCK
            for h in range(arg(args, STORE_FIRST), arg(args, STORE_LAST)):
                k = arg(args, STORE_K) + t * arg(args, STORE_K_STRIDE) + 4 * h * head_dim
                v = arg(args, STORE_V) + t * arg(args, STORE_V_STRIDE) + 4 * h * head_dim
                group = h * blocks * (KEY_BLOCK // KEY_GROUP) + slot // KEY_GROUP
                out = base + arg(args, STORE_K_AT) + (group * head_dim * KEY_GROUP + slot % KEY_GROUP) * size
                for i in range(head_dim):
                    put(out + i * KEY_GROUP * size, load_f32(k + 4 * i))
                out = base + arg(args, STORE_V_AT) + (h * blocks * KEY_BLOCK + slot) * width * size
                for i in range(head_dim):
                    put(out + i * size, load_f32(v + 4 * i))

    return step(store)


@inline
def _put_f16(address, value):  # type: ignore[no-untyped-def]
    store_f16(address, value)


@inline
def _put_f32(address, value):  # type: ignore[no-untyped-def]
    store_f32(address, value)


store_f16_cache, store_f32_cache = _store(_put_f16, 2), _store(_put_f32, 4)
