"""The steps that append keys and values to a sequence's cache, in the kinds and places of kernels/kv."""

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
from llmgen.backends.cpu.kernels.arguments import places
from llmgen.backends.cpu.kernels.attention_arguments import Store
from llmgen.backends.cpu.kernels.kv import TABLE, KVKind, key_group_bytes, kinds_of, value_block_bytes
from llmgen.backends.cpu.kernels.kv.encode import put_key_of, put_value_of
from llmgen.backends.cpu.kernels.layout import KEY_BLOCK, KEY_GROUP
from llmgen.backends.cpu.kernels.simd import load_i64

at = places(Store)
group_bytes_of, block_bytes_of = inline(key_group_bytes), inline(value_block_bytes)


def _store(put_key: Any, put_value: Any) -> Any:
    """A step that appends keys and values; put(row, n, part of the cache, block of a head, position in it)."""

    def store(args: int, thread: int, n_threads: int) -> None:
        """Append this run's rows (heads first..last) to the cache, each at its position."""
        control, blocks = arg(args, at.control), arg(args, at.blocks)
        key_dim, value_dim = arg(args, at.key_dim), arg(args, at.value_dim)
        first, last = tokens_of(control, arg(args, at.split_tokens), thread, n_threads)
        for t in range(first, last):
            position = load_i64(control_field(control, CONTROL_POSITIONS) + 8 * t)
            base = load_i64(control_field(control, CONTROL_SEQUENCES) + 8 * t)
            k, v = arg(args, at.k) + t * arg(args, at.k_stride), arg(args, at.v) + t * arg(args, at.v_stride)
            for h in range(arg(args, at.first), arg(args, at.last)):
                block, lane = h * blocks + position // KEY_BLOCK % blocks, position % KEY_BLOCK
                put_key(k + 4 * h * key_dim, key_dim, base + arg(args, at.k_at), block, lane)
                put_value(v + 4 * h * value_dim, value_dim, base + arg(args, at.v_at), block, lane)

    return step(store)


@inline
def _nothing(x, n, base, block, lane):  # type: ignore[no-untyped-def]
    """Keys without values, or values without keys."""


def _key(kind: KVKind) -> Any:
    bits, scales, put_key = kind.bits, kind.block, put_key_of(kind)

    @inline
    def put(x, n, base, block, lane):  # type: ignore[no-untyped-def]
        group = block * (KEY_BLOCK // KEY_GROUP) + lane // KEY_GROUP
        put_key(x, n, base + group * group_bytes_of(n, bits, scales), lane % KEY_GROUP)

    return put


def _value(kind: KVKind) -> Any:
    bits, scales, put_value = kind.bits, kind.block, put_value_of(kind)

    @inline
    def put(x, n, base, block, lane):  # type: ignore[no-untyped-def]
        put_value(x, n, base + block * block_bytes_of(n, bits, scales), lane)

    return put


def __getattr__(name: str) -> Any:
    """The kernel of a kind, keys_q8_0 or values_q8_0, or of a pair, rows_q8_0_f16, made when it is asked for."""
    role, _, key = name.partition("_")
    if role == "rows":
        _, keys, values = kinds_of(name)
        return _store(_key(keys), _value(values))
    if role not in ("keys", "values") or key not in TABLE:
        raise AttributeError(name)
    return _store(_key(TABLE[key]), _nothing) if role == "keys" else _store(_nothing, _value(TABLE[key]))
