"""The KV cache of one layer, as the store and attention kernels see it."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.call import Run, aligned, step
from llmgen.kernels.layout import KEY_BLOCK, KEY_GROUP, MAX_COLUMNS, TILE_TOKENS

NO_WINDOW = 1 << 40
STATE = 64  # bytes of a row's state before its values
SCORE_ROWS = 8


def width_of(head_dim: int) -> int:
    return -(-head_dim // 16) * 16


class Cache:
    """Keys and values of n_kv heads; position p lives in block (p // KEY_BLOCK) % blocks."""

    def __init__(self, n_kv: int, head_dim: int, blocks: int, kind: str) -> None:
        self.n_kv, self.head_dim, self.blocks, self.kind = n_kv, head_dim, blocks, kind
        self.dtype = np.dtype("<f2" if kind == "f16" else "<f4")
        # what was never written is NaN: nothing of it may count
        n_keys = n_kv * blocks * KEY_BLOCK * head_dim
        memory = aligned(n_keys + n_kv * blocks * KEY_BLOCK * width_of(head_dim), self.dtype, np.nan)
        self.keys = memory[:n_keys].reshape(n_kv, blocks * KEY_BLOCK // KEY_GROUP, head_dim, KEY_GROUP)
        self.values = memory[n_keys:].reshape(n_kv, blocks * KEY_BLOCK, width_of(head_dim))
        self.base, self.k_at, self.v_at = memory.ctypes.data, 0, n_keys * self.dtype.itemsize

    def slot(self, position: int) -> int:
        return position // KEY_BLOCK % self.blocks * KEY_BLOCK + position % KEY_BLOCK

    def key(self, position: int) -> np.ndarray:
        """[n_kv, head_dim]."""
        slot = self.slot(position)
        return self.keys[:, slot // KEY_GROUP, :, slot % KEY_GROUP]

    def value(self, position: int) -> np.ndarray:
        return self.values[:, self.slot(position), : self.head_dim]

    def run(self, positions: Any) -> Run:
        return Run(len(positions), positions=positions, caches=[self.base] * len(positions))

    def store(self, k: np.ndarray, v: np.ndarray, positions: Any, n_threads: int = 0) -> None:
        """k, v [n, n_kv, head_dim] at the given positions."""
        n = len(k)
        ks, vs = (aligned((n, self.n_kv * self.head_dim + 16)) for _ in range(2))
        ks[:, :-16], vs[:, :-16] = k.reshape(n, -1), v.reshape(n, -1)
        for thread in range(max(n_threads, 1)):
            step(
                f"rope:store_{self.kind}_cache",
                thread,
                max(n_threads, 1),
                prefix="STORE_",
                K=ks,
                K_STRIDE=ks.strides[0],
                V=vs,
                V_STRIDE=vs.strides[0],
                FIRST=0,
                LAST=self.n_kv,
                HEAD_DIM=self.head_dim,
                K_AT=self.k_at,
                V_AT=self.v_at,
                BLOCKS=self.blocks,
                SPLIT=int(n_threads > 0),
                RUN=self.run(positions),
            )

    def rounded(self, x: np.ndarray) -> np.ndarray:
        """What the cache keeps of x."""
        return x.astype(self.dtype).astype(np.float64)

    def common(self, q: np.ndarray, window: int, cap: float) -> dict[str, Any]:
        return {
            "Q": q,
            "Q_STRIDE": q.strides[0],
            "N_KV": self.n_kv,
            "GROUP": q.shape[1] // (self.n_kv * self.head_dim),
            "HEAD_DIM": self.head_dim,
            "K_AT": self.k_at,
            "V_AT": self.v_at,
            "BLOCKS": self.blocks,
            "WINDOW": window,
            "CAP": float(cap),
        }


def queries(q: np.ndarray) -> np.ndarray:
    """q [n, n_heads, head_dim] as a program's buffer."""
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
) -> np.ndarray:
    """Generated tokens, one of each sequence: q [n, n_heads, head_dim] -> the same shape."""
    cache, n = caches[0], len(q)
    assert n <= MAX_COLUMNS
    n_heads, buffer = q.shape[1], queries(q)
    most = max(positions) // KEY_BLOCK + 1
    seen = most if window == NO_WINDOW else min(-(-window // KEY_BLOCK) + 1, cache.blocks)
    state = STATE + 4 * width_of(cache.head_dim)
    partial = aligned((n, n_heads * seen * state), np.uint8, 0xFF)
    out = aligned((n, buffer.shape[1] + 16), fill=-7.5)
    run = Run(n, positions=positions, caches=[c.base for c in caches])
    for kernel in (f"attention:blocks_{cache.kind}", "attention:combine"):
        for thread in range(n_threads):
            step(
                kernel,
                thread,
                n_threads,
                level,
                **cache.common(buffer, window, cap),
                OUT=out,
                OUT_STRIDE=out.strides[0],
                PARTIAL=partial,
                PARTIAL_BLOCKS=seen,
                SCRATCH=aligned(SCORE_ROWS * KEY_BLOCK * 4 + state, np.uint8, 0xFF),
                RUN=run,
            )
    assert np.all(out[:, buffer.shape[1] :] == -7.5)
    return out[:, : buffer.shape[1]].reshape(q.shape)


def prompt(
    cache: Cache,
    q: np.ndarray,
    first: int,
    window: int = NO_WINDOW,
    cap: float = 0.0,
    n_threads: int = 1,
    level: str | None = None,
) -> np.ndarray:
    """Prompt tokens at positions first, first + 1, ...: q [n, n_heads, head_dim] -> the same shape."""
    n, n_heads, buffer = len(q), q.shape[1], queries(q)
    rows = TILE_TOKENS * n_heads // cache.n_kv
    state = STATE + 4 * width_of(cache.head_dim)
    out = aligned((n, buffer.shape[1] + 16), fill=-7.5)
    for thread in range(n_threads):
        step(
            f"attention:tiles_{cache.kind}",
            thread,
            n_threads,
            level,
            **cache.common(buffer, window, cap),
            OUT=out,
            OUT_STRIDE=out.strides[0],
            SCRATCH=aligned(
                SCORE_ROWS * KEY_BLOCK * 4 + rows * (4 * cache.head_dim + state) + 64, np.uint8, 0xFF
            ),
            RUN=cache.run(range(first, first + n)),
        )
    assert np.all(out[:, buffer.shape[1] :] == -7.5)
    return out[:, : buffer.shape[1]].reshape(q.shape)
