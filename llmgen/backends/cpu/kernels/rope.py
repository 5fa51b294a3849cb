"""Rotary position embedding.

The table holds for each position n_rot cosines and n_rot signed sines, so that a
rotation is  out[i] = x[i] * cos[i] + x[partner(i)] * sin[i].  The partner is the
neighbour (pairs 2i, 2i + 1: "norm") or the value half a head away ("neox").
"""

from __future__ import annotations

import numpy as np

from llmgen.backends.cpu.kernels.abi import (
    CONTROL_POSITIONS,
    arg,
    arg_f64,
    control_field,
    inline,
    step,
    tokens_of,
)
from llmgen.backends.cpu.kernels.arguments import Rope, places
from llmgen.backends.cpu.kernels.simd import (
    f32x16,
    fma,
    load_f32,
    load_f32x16,
    load_i64,
    shuffle,
    splat,
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


at = places(Rope)


@step
def rope(args: int, thread: int, n_threads: int) -> None:
    """Rotate heads first..last of every token in place by its position, then multiply them by ``scale``."""
    control = arg(args, at.control)
    positions = control_field(control, CONTROL_POSITIONS)
    head_dim = arg(args, at.head_dim)
    n_rot = arg(args, at.n_rot)
    first, last = tokens_of(control, arg(args, at.split_tokens), thread, n_threads)
    for t in range(first, last):
        position = load_i64(positions + 8 * t)
        row = arg(args, at.table) + position * n_rot * 8
        scale = np.float32(arg_f64(args, at.scale))
        if arg(args, at.position_scale):
            scale *= load_f32(arg(args, at.position_scale) + 4 * position)
        for h in range(arg(args, at.first), arg(args, at.last)):
            x = arg(args, at.x) + t * arg(args, at.x_stride) + 4 * h * head_dim
            if n_rot:
                if arg(args, at.neox):
                    rotate_halves(x, row, n_rot)
                else:
                    rotate_neighbours(x, row, n_rot)
            if scale != np.float32(1.0):
                whole = head_dim // 16 * 16
                for i in range(0, 4 * whole, 64):
                    store_f32x16(x + i, load_f32x16(x + i) * splat(scale))
                for i in range(whole, head_dim):
                    store_f32(x + 4 * i, load_f32(x + 4 * i) * scale)
