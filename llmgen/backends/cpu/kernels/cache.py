"""The steps that concatenate keys and values to a sequence's cache, in the kinds and places of kernels/kv."""

from __future__ import annotations

from typing import Any

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
from llmgen.backends.cpu.kernels.kv import TABLE, KVKind, key_group_bytes, value_block_bytes
from llmgen.backends.cpu.kernels.kv.encode import put_key_of, put_value_of
from llmgen.backends.cpu.kernels.layout import KEY_BLOCK, KEY_GROUP
from llmgen.backends.cpu.kernels.simd import load_i64

at = places(Store)
group_bytes_of, block_bytes_of = inline(key_group_bytes), inline(value_block_bytes)


def _store(put: Any) -> Any:
    """A step that calls put(row, head's part of the cache, position in that part) for every head's row of this run."""

    def store(args: int, thread: int, n_threads: int) -> None:
        """Concatenate this run's rows (heads first..last) to the cache, each at its position."""
        control = arg(args, at.control)
        n, blocks = arg(args, at.n), arg(args, at.blocks)
        first, last = tokens_of(control, arg(args, at.split_tokens), thread, n_threads)
        for t in range(first, last):
            position = load_i64(control_field(control, CONTROL_POSITIONS) + 8 * t)
            base = load_i64(control_field(control, CONTROL_SEQUENCES) + 8 * t) + arg(args, at.at)
            block = position // KEY_BLOCK % blocks
            for h in range(arg(args, at.first), arg(args, at.last)):
                x = arg(args, at.x) + t * arg(args, at.x_stride) + 4 * h * n
                put(x, n, base, h * blocks + block, position % KEY_BLOCK)

    return step(store)


def _keys(kind: KVKind) -> Any:
    bits, scales, put_key = kind.bits, kind.block, put_key_of(kind)

    @inline
    def put(x, n, base, block, lane):  # type: ignore[no-untyped-def]
        group = block * (KEY_BLOCK // KEY_GROUP) + lane // KEY_GROUP
        put_key(x, n, base + group * group_bytes_of(n, bits, scales), lane % KEY_GROUP)

    return _store(put)


def _values(kind: KVKind) -> Any:
    bits, scales, put_value = kind.bits, kind.block, put_value_of(kind)

    @inline
    def put(x, n, base, block, lane):  # type: ignore[no-untyped-def]
        put_value(x, n, base + block * block_bytes_of(n, bits, scales), lane)

    return _store(put)


def __getattr__(name: str) -> Any:
    """The kernel of a kind, keys_q8_0 or values_q8_0, made when it is asked for."""
    role, _, key = name.partition("_")
    if role not in ("keys", "values") or key not in TABLE:
        raise AttributeError(name)
    return (_keys if role == "keys" else _values)(TABLE[key])
