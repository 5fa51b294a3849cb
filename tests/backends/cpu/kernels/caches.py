"""The KV cache of one layer, as the store and attention kernels see it."""

from __future__ import annotations

from typing import Any

import numpy as np
from kernels.call import ControlBlock, aligned, step

from llmgen.backends.cpu.kernels.decode_plan import blocks_scratch
from llmgen.backends.cpu.kernels.kv import TABLE, attention_kernel, prompt_scratch, store_kernel
from llmgen.backends.cpu.kernels.layout import (
    FIELDS,
    KEY_BLOCK,
    MAX_COLUMNS,
    ROW_STATE,
)

NO_WINDOW = 1 << 40


def width_of(value_dim: int) -> int:
    return -(-value_dim // 16) * 16


class Cache:
    """Keys and values of n_kv heads; position p lives in block (p // KEY_BLOCK) % blocks.

    kind: of both, or "KEYS VALUES".
    """

    def __init__(self, n_kv: int, key_dim: int, value_dim: int, blocks: int, kind: str) -> None:
        self.n_kv, self.key_dim, self.value_dim, self.blocks = n_kv, key_dim, value_dim, blocks
        self.kinds = kind.split() if " " in kind else [kind, kind]
        keys, values = (TABLE[name] for name in self.kinds)
        self.v_at = n_kv * blocks * keys.key_bytes(key_dim)
        # what was never written is NaN, or the scale of its block is: nothing of it may count
        self.memory = aligned(self.v_at + n_kv * blocks * values.value_bytes(value_dim), np.uint8, 0xFF)
        self.base, self.k_at = self.memory.ctypes.data, 0

    def forget(self) -> None:
        self.memory[:] = 0xFF

    def control(self, positions: Any) -> ControlBlock:
        n = len(positions)
        ends = [positions[-1]] * n
        sequences = [self.base] * n
        return ControlBlock(
            n, positions=positions, run_ends=ends, sequences=sequences, memories=[self.memory]
        )

    def store(
        self, k: np.ndarray, v: np.ndarray, positions: Any, n_threads: int = 0, level: str | None = None
    ) -> None:
        """k [n, n_kv, key_dim] and v [n, n_kv, value_dim] at the given positions."""
        rows = [aligned((len(x), x.shape[1] * x.shape[2] + 16)) for x in (k, v)]
        for x, flat in zip((k, v), rows, strict=True):
            flat[:, :-16] = x.reshape(len(x), -1)
        for thread in range(max(n_threads, 1)):
            step(
                store_kernel(*self.kinds),
                thread,
                max(n_threads, 1),
                level,
                k=rows[0],
                k_stride=rows[0].strides[0],
                v=rows[1],
                v_stride=rows[1].strides[0],
                first=0,
                last=self.n_kv,
                key_dim=self.key_dim,
                value_dim=self.value_dim,
                k_at=self.k_at,
                v_at=self.v_at,
                blocks=self.blocks,
                split_tokens=int(n_threads > 0),
                control=self.control(positions),
            )

    def common(
        self,
        q: np.ndarray,
        window: int,
        cap: float,
        slopes: np.ndarray | None,
        sinks: np.ndarray | None,
        last: str = "positions",
    ) -> dict[str, Any]:
        return {
            "q": q,
            "q_stride": q.strides[0],
            "n_kv": self.n_kv,
            "group": q.shape[1] // (self.n_kv * self.key_dim),
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "k_at": self.k_at,
            "v_at": self.v_at,
            "blocks": self.blocks,
            "window": window,
            "last": 8 * FIELDS[last],
            "cap": float(cap),
            "slopes": 0 if slopes is None else slopes,
            "sinks": 0 if sinks is None else sinks,
        }


def queries(q: np.ndarray) -> np.ndarray:
    """q [n, n_heads, key_dim] as a program's buffer."""
    out = aligned((len(q), q.shape[1] * q.shape[2]))
    out[:] = q.reshape(len(q), -1)
    return out


def generate(
    caches: list[Cache],
    q: np.ndarray,
    positions: Any,
    window: int = NO_WINDOW,
    cap: float = 0.0,
    n_threads: int = 1,
    level: str | None = None,
    slopes: np.ndarray | None = None,
    sinks: np.ndarray | None = None,
    together: int = MAX_COLUMNS,
    local: int = 0,
    streams: int = 1,
) -> np.ndarray:
    """Generated tokens, each of the sequence beside it: q [n, n_heads, key_dim] -> [n, n_heads, value_dim].

    together, local, streams: see kernels/decode_plan.py.
    """
    cache, n = caches[0], len(q)
    assert n <= MAX_COLUMNS
    n_heads, buffer = q.shape[1], queries(q)
    most = max(positions) // KEY_BLOCK + 1
    seen = most if window == NO_WINDOW else min(-(-abs(window) // KEY_BLOCK) + 1, cache.blocks)
    state = ROW_STATE + 4 * width_of(cache.value_dim)
    states = aligned((n, n_heads * seen * state), np.uint8, 0xFF)
    width = n_heads * cache.value_dim
    out = aligned((n, width + 16), fill=-7.5)
    bases = [c.base for c in caches]
    control = ControlBlock(
        n, positions=positions, sequences=bases, together=together, local=local, streams=streams
    )
    common = cache.common(buffer, window, cap, slopes, sinks)
    nbytes = blocks_scratch(n_heads // cache.n_kv, cache.key_dim, cache.value_dim)
    for thread in range(n_threads):
        step(
            attention_kernel("blocks", *cache.kinds),
            thread,
            n_threads,
            level,
            **common,
            out=states,
            out_stride=states.strides[0],
            scratch=aligned(nbytes, np.uint8, 0xFF),
            control=control,
        )
    for thread in range(n_threads):
        step(
            "attention:combine",
            thread,
            n_threads,
            level,
            **{name: common[name] for name in ("n_kv", "group", "value_dim", "window", "last")},
            states=states,
            states_stride=states.strides[0],
            out=out,
            out_stride=out.strides[0],
            control=control,
        )
    assert np.all(out[:, width:] == -7.5)
    return out[:, :width].reshape(n, n_heads, -1)


def prompt(
    cache: Cache,
    q: np.ndarray,
    first: int,
    window: int = NO_WINDOW,
    cap: float = 0.0,
    n_threads: int = 1,
    level: str | None = None,
    slopes: np.ndarray | None = None,
    sinks: np.ndarray | None = None,
    causal: bool = True,
) -> np.ndarray:
    """Prompt tokens at positions first, first + 1, ...: q [n, n_heads, key_dim] -> [n, n_heads, value_dim]."""
    n, n_heads, buffer = len(q), q.shape[1], queries(q)
    group = n_heads // cache.n_kv
    width = n_heads * cache.value_dim
    out = aligned((n, width + 16), fill=-7.5)
    for thread in range(n_threads):
        step(
            attention_kernel("tiles", *cache.kinds),
            thread,
            n_threads,
            level,
            **cache.common(buffer, window, cap, slopes, sinks, "positions" if causal else "run_ends"),
            out=out,
            out_stride=out.strides[0],
            scratch=aligned(prompt_scratch(group, cache.key_dim, cache.value_dim), np.uint8, 0xFF),
            control=cache.control(range(first, first + n)),
        )
    assert np.all(out[:, width:] == -7.5)
    return out[:, :width].reshape(n, n_heads, -1)
