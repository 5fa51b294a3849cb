"""The KV cache: one piece of address space per sequence, in which every layer keeps keys and values.

New keys and values are concatenated along the sequence axis, in place.  The address
space for the whole context is reserved at once and touched as it fills, so addresses
in the program stay true and nothing is copied.  A layer with a sliding window keeps
its window plus one chunk, as a ring of whole key blocks.

Layout of a layer (see kernels/cache.py): keys, then values, each per kv head.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from llmgen.backends.cpu.kernels.layout import KEY_BLOCK
from llmgen.backends.cpu.memory import anonymous
from llmgen.errors import ContextFullError, LLMGenError, UsageError
from llmgen.model.config import ModelConfig

KV_BYTES = {"f16": 2, "f32": 4}


@dataclass(frozen=True)
class LayerCache:
    """Where a layer's keys and values lie in a sequence's cache."""

    n_kv_heads: int
    head_dim: int
    blocks: int  # key blocks kept; position p lives in block (p // KEY_BLOCK) % blocks
    window: int  # keys that a query sees; the whole context where there is no window
    key_offset: int  # bytes
    value_offset: int
    element: int  # bytes of one value

    @property
    def key_bytes(self) -> int:
        """Bytes of one head's keys per block."""
        return KEY_BLOCK * self.head_dim * self.element

    @property
    def value_bytes(self) -> int:
        return KEY_BLOCK * (-(-self.head_dim // 16) * 16) * self.element


class CacheLayout:
    """The layers' caches, one behind the other."""

    def __init__(self, config: ModelConfig, n_ctx: int, chunk: int, kv_type: str) -> None:
        if kv_type not in KV_BYTES:
            raise UsageError(
                f"unknown KV cache type {kv_type!r}; choose one of {', '.join(KV_BYTES)} (--kv-type)"
            )
        self.kv_type = kv_type
        self.layers: list[LayerCache] = []
        whole = -(-n_ctx // KEY_BLOCK)
        offset = 0
        for layer in range(config.n_layers):
            local = config.is_local(layer)
            blocks = min(whole, -(-(config.window + chunk) // KEY_BLOCK) + 1) if local else whole
            window = config.window if local else 1 << 40
            cache = LayerCache(
                config.n_kv_heads, config.head_dim, blocks, window, offset, 0, KV_BYTES[kv_type]
            )
            values = offset + _page(cache.key_bytes * blocks * cache.n_kv_heads)
            cache = LayerCache(
                config.n_kv_heads, config.head_dim, blocks, window, offset, values, KV_BYTES[kv_type]
            )
            self.layers.append(cache)
            offset = values + _page(cache.value_bytes * blocks * cache.n_kv_heads)
        self.nbytes = offset

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one more token takes, as long as no window is full."""
        return sum((c.key_bytes + c.value_bytes) * c.n_kv_heads for c in self.layers) // KEY_BLOCK

    def bytes_for(self, n_tokens: int) -> int:
        """Bytes that a context of n_tokens takes, windows taken into account."""
        total = 0
        for c in self.layers:
            total += (c.key_bytes + c.value_bytes) * c.n_kv_heads * min(-(-n_tokens // KEY_BLOCK), c.blocks)
        return total


def _page(nbytes: int) -> int:
    return -(-nbytes // 4096) * 4096


class Sequence:
    """One sequence of tokens with its cache.  Made by ``Model.new_sequence``.

    ``length`` counts committed tokens; a run that fails or is stopped commits nothing.
    """

    def __init__(self, layout: CacheLayout, n_ctx: int) -> None:
        self.n_ctx = n_ctx
        self.length = 0
        self._layout = layout
        self._reached = 0  # the longest length whose keys are in the cache
        self._memory: mmap.mmap | None = None
        self._data: np.ndarray | None = None
        self._reserve()

    def _reserve(self) -> None:
        try:
            self._memory = anonymous(self._layout.nbytes)
        except (OSError, ValueError, OverflowError) as error:
            raise LLMGenError(
                f"a KV cache for {self.n_ctx} tokens needs {self._layout.nbytes / 2**20:,.0f} MiB of address space, "
                "which this machine does not give; choose a smaller context (-c)"
            ) from error
        self._data = np.frombuffer(self._memory, dtype=np.uint8)

    def memory(self) -> np.ndarray:
        """The cache, uint8.  Whoever runs over it keeps this array: it stays mapped as long, whatever others close."""
        if self._data is None:
            raise LLMGenError("this sequence is closed; make a new one")
        return self._data

    def room(self) -> int:
        """Tokens that still fit into the context."""
        return self.n_ctx - self.length

    def commit(self, n: int) -> None:
        """n more tokens are in the cache."""
        self.length += n
        self._reached = max(self._reached, self.length)

    def touch(self, length: int) -> None:
        """Keys up to ``length`` are about to be written: older ones of windows may go."""
        self._reached = max(self._reached, length)

    @property
    def min_truncate(self) -> int:
        """The smallest length (besides 0) to which the sequence can be cut back."""
        low = 0
        for cache in self._layout.layers:
            kept = cache.blocks * KEY_BLOCK
            if self._reached > kept:
                # a block is overwritten as a whole as soon as its successor starts
                oldest = (-(-self._reached // KEY_BLOCK)) * KEY_BLOCK - kept
                low = max(low, min(oldest + cache.window - 1, self.length))
        return low

    def truncate(self, n: int) -> None:
        """Cut back to n tokens.  Raises ContextFullError where a sliding window no longer has what is needed."""
        if not 0 <= n <= self.length:
            raise LLMGenError(
                f"cannot cut a sequence of {self.length} tokens to {n}; choose 0 to {self.length}"
            )
        if n and n < self.min_truncate:
            raise ContextFullError(
                f"cannot cut back to {n} tokens: the sliding window keeps only what follows {self.min_truncate}; "
                "start from 0 and compute the tokens again"
            )
        self.length = n
        if n == 0:
            self._reached = 0

    def clear(self) -> None:
        """Forget all tokens."""
        self.truncate(0)

    def fork(self) -> Sequence:
        """A second sequence with the same tokens and a cache of its own; copies only what is filled."""
        other = Sequence(self._layout, self.n_ctx)
        other.length, other._reached = self.length, self._reached
        for mine, its in zip(self.filled(), other.filled(), strict=True):
            its[:] = mine
        return other

    def become(self, other: Sequence, common: int) -> None:
        """Hold what another sequence of the same model holds, the first ``common`` tokens of which are here already.

        They must have been computed in the same roles.  Copies only the blocks after them, and
        a sliding window that is full as a whole.
        """
        if other._layout is not self._layout or not 0 <= common <= min(self.length, other.length):
            raise LLMGenError(
                f"a sequence of {self.length} tokens cannot share {common} with one of {other.length}; both"
                " must be of one model and have them"
            )
        mine, its = self.memory(), other.memory()
        end = -(-max(self._reached, other._reached) // KEY_BLOCK)
        for cache in self._layout.layers:
            first, last = (common // KEY_BLOCK, end) if end <= cache.blocks else (0, cache.blocks)
            for offset, size in (
                (cache.key_offset, cache.key_bytes),
                (cache.value_offset, cache.value_bytes),
            ):
                for head in range(cache.n_kv_heads):
                    start = offset + head * cache.blocks * size
                    part = slice(start + first * size, start + last * size)
                    mine[part] = its[part]
        self.length, self._reached = other.length, other._reached

    def filled(self) -> Iterator[np.ndarray]:
        """The parts of the memory that hold anything, uint8: for each layer its heads' keys, then their values."""
        memory = self.memory()
        blocks = -(-self._reached // KEY_BLOCK)
        for cache in self._layout.layers:
            for offset, size in (
                (cache.key_offset, cache.key_bytes),
                (cache.value_offset, cache.value_bytes),
            ):
                for head in range(cache.n_kv_heads):
                    start = offset + head * cache.blocks * size
                    yield memory[start : start + min(blocks, cache.blocks) * size]

    @property
    def layout(self) -> CacheLayout:
        """Where what lies."""
        return self._layout

    @property
    def reached(self) -> int:
        """The longest length whose keys were written, since the sequence was last empty."""
        return self._reached

    def restore(self, length: int, reached: int) -> None:
        """Declare that ``filled`` holds this many tokens: for whoever fills it from a file."""
        self.length, self._reached = length, reached

    def close(self) -> None:
        """Give the memory back."""
        self._data = None
        self._memory = None
