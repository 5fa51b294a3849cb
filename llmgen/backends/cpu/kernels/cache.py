"""The step that concatenates keys and values to a sequence's cache."""

from __future__ import annotations

from typing import Any

from llmgen.backends.cpu.kernels import simd
from llmgen.backends.cpu.kernels.abi import (
    CONTROL_POSITIONS,
    CONTROL_SEQUENCES,
    arg,
    control_field,
    inline,
    step,
    tokens_of,
)
from llmgen.backends.cpu.kernels.arguments import Store, places
from llmgen.backends.cpu.kernels.layout import KEY_BLOCK, KEY_GROUP, value_width
from llmgen.backends.cpu.kernels.simd import load_f32, load_i64

at = places(Store)
width_of = inline(value_width)


def _store(put: Any, size: int) -> Any:
    def store(args: int, thread: int, n_threads: int) -> None:
        """Concatenate this run's keys and values (heads first..last) to the cache, each at its position.

        keys: per head [blocks * groups of a block][key_dim][16 positions]; values: per head
        [blocks * KEY_BLOCK positions][value_dim rounded up to 16]; position p lives in block
        (p // KEY_BLOCK) % blocks.
        """
        control = arg(args, at.control)
        key_dim, value_dim = arg(args, at.key_dim), arg(args, at.value_dim)
        width = width_of(value_dim)
        blocks = arg(args, at.blocks)
        first, last = tokens_of(control, arg(args, at.split_tokens), thread, n_threads)
        for t in range(first, last):
            position = load_i64(control_field(control, CONTROL_POSITIONS) + 8 * t)
            base = load_i64(control_field(control, CONTROL_SEQUENCES) + 8 * t)
            slot = (position // KEY_BLOCK) % blocks * KEY_BLOCK + position % KEY_BLOCK
            for h in range(arg(args, at.first), arg(args, at.last)):
                k = arg(args, at.k) + t * arg(args, at.k_stride) + 4 * h * key_dim
                v = arg(args, at.v) + t * arg(args, at.v_stride) + 4 * h * value_dim
                group = h * blocks * (KEY_BLOCK // KEY_GROUP) + slot // KEY_GROUP
                out = base + arg(args, at.k_at) + (group * key_dim * KEY_GROUP + slot % KEY_GROUP) * size
                for i in range(key_dim):
                    put(out + i * KEY_GROUP * size, load_f32(k + 4 * i))
                out = base + arg(args, at.v_at) + (h * blocks * KEY_BLOCK + slot) * width * size
                for i in range(value_dim):
                    put(out + i * size, load_f32(v + 4 * i))

    return step(store)


store_f16, store_f32 = _store(simd.store_f16, 2), _store(simd.store_f32, 4)
