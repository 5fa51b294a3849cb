"""Rotary embedding and the cache's store against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.caches import Cache, width_of
from kernels.call import STORE, ControlBlock, aligned, require, step

from llmgen.backends.cpu.kernels.layout import KEY_BLOCK, KEY_GROUP
from llmgen.backends.cpu.rope_table import RopeTable
from llmgen.model.rope import Rope as Rotation
from naive.kernels import Rope, rotate

# head_dim, n_rot
SHAPES = [
    (16, 16),
    (40, 40),
    (40, 20),
    (64, 64),
    (64, 16),
    (80, 80),
    (80, 20),
    (128, 64),
    (256, 256),
    (10, 2),
    (32, 0),
]


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    require(["rope:rope", *STORE])


def rotated(
    x: np.ndarray,
    positions: list[int],
    table: RopeTable,
    *,
    scale: float = 1.0,
    position_scale: np.ndarray | None = None,
    heads: tuple[int, int] | None = None,
    n_threads: int = 0,
) -> np.ndarray:
    """x [n, n_heads, head_dim]; n_threads 0: one thread takes all tokens."""
    n, n_heads, head_dim = x.shape
    table.fill(max(positions) + 1)
    out = aligned((n + 1, n_heads * head_dim + 16), fill=-7.5)
    out[:n, : n_heads * head_dim] = x.reshape(n, -1)
    first, last = heads or (0, n_heads)
    for thread in range(max(n_threads, 1)):
        step(
            "rope:rope",
            thread,
            max(n_threads, 1),
            x=out,
            x_stride=out.strides[0],
            first=first,
            last=last,
            head_dim=head_dim,
            n_rot=table.n_rot,
            neox=int(table.neox),
            table=table.address,
            scale=scale,
            position_scale=0 if position_scale is None else position_scale,
            split_tokens=int(n_threads > 0),
            control=ControlBlock(n, positions=positions),
        )
    assert np.all(out[n] == -7.5)
    assert np.all(out[:, n_heads * head_dim :] == -7.5)
    return out[:n, : n_heads * head_dim].reshape(x.shape)


@pytest.mark.parametrize("neox", [False, True])
@pytest.mark.parametrize(("head_dim", "n_rot"), SHAPES)
def test_rotation(head_dim: int, n_rot: int, neox: bool) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(0, 1, (6, 3, head_dim)).astype(np.float32)
    positions = [0, 1, 2, 100, 255, 999]
    ours = rotated(x, positions, RopeTable(Rotation.of(n_rot, 10000.0, neox), 1000))
    expected = rotate(x.astype(np.float64), Rope(n_rot, neox=neox), np.array(positions)) if n_rot else x
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(ours[..., n_rot:], x[..., n_rot:])
    np.testing.assert_array_equal(ours[0], x[0])


@pytest.mark.parametrize("neox", [False, True])
def test_scales(neox: bool) -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(0, 1, (4, 2, 40)).astype(np.float32)
    positions = [0, 3, 7, 1]
    table = RopeTable(Rotation.of(20, 10000.0, neox), 16)
    per_token = aligned(16)
    per_token[:] = rng.uniform(0.5, 2, 16)
    plain = rotated(x, positions, table)
    np.testing.assert_array_equal(rotated(x, positions, table, scale=0.125), plain * np.float32(0.125))
    both = plain.astype(np.float64) * 0.3 * per_token[positions][:, None, None]
    np.testing.assert_allclose(
        rotated(x, positions, table, scale=0.3, position_scale=per_token), both, rtol=3e-7
    )


@pytest.mark.parametrize("neox", [False, True])
def test_a_part_of_the_heads_and_tiles_for_threads(neox: bool) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(0, 1, (21, 5, 80)).astype(np.float32)
    positions, table = list(range(30, 51)), RopeTable(Rotation.of(80, 500000.0, neox), 64)
    whole = rotated(x, positions, table)
    some = rotated(x, positions, table, heads=(1, 4))
    np.testing.assert_array_equal(some[:, 1:4], whole[:, 1:4])
    np.testing.assert_array_equal(some[:, [0, 4]], x[:, [0, 4]])
    for n_threads in (1, 2, 3, 5):
        np.testing.assert_array_equal(rotated(x, positions, table, n_threads=n_threads), whole)


def test_far_positions_keep_their_precision() -> None:
    """Angles of a hundred thousand turns must not be computed in float32."""
    x = np.random.default_rng(4).normal(0, 1, (1, 1, 64)).astype(np.float32)
    ours = rotated(x, [131071], RopeTable(Rotation.of(64, 10000.0, False), 131072))
    np.testing.assert_allclose(ours, rotate(x.astype(np.float64), Rope(64), np.array([131071])), atol=1e-6)


class FloatCache(Cache):
    """A cache of float numbers, whose rows lie as they are."""

    def __init__(self, n_kv: int, key_dim: int, value_dim: int, blocks: int, kind: str) -> None:
        super().__init__(n_kv, key_dim, value_dim, blocks, kind)
        self.dtype = np.dtype(np.float16 if kind == "f16" else np.float32)
        keys, values = self.memory[: self.v_at].view(self.dtype), self.memory[self.v_at :].view(self.dtype)
        self.keys = keys.reshape(n_kv, -1, key_dim, KEY_GROUP)
        self.values = values.reshape(n_kv, blocks * KEY_BLOCK, width_of(value_dim))

    def key(self, position: int) -> np.ndarray:
        """[n_kv, key_dim]."""
        slot = position % (self.blocks * KEY_BLOCK)
        return self.keys[:, slot // KEY_GROUP, :, slot % KEY_GROUP]

    def value(self, position: int) -> np.ndarray:
        return self.values[:, position % (self.blocks * KEY_BLOCK), : self.value_dim]


@pytest.mark.parametrize("kind", ["f16", "f32"])
@pytest.mark.parametrize("head_dim", [10, 16, 40, 80, 256])
def test_store(head_dim: int, kind: str) -> None:
    rng = np.random.default_rng(5)
    positions = [0, 1, 15, 16, 17, KEY_BLOCK - 1, KEY_BLOCK, 3 * KEY_BLOCK + 5, 4 * KEY_BLOCK - 1]
    k, v = (rng.normal(0, 1, (len(positions), 3, head_dim)).astype(np.float32) for _ in range(2))
    cache = FloatCache(3, head_dim, head_dim, 4, kind)
    cache.store(k, v, positions)
    for i, position in enumerate(positions):
        np.testing.assert_array_equal(cache.key(position), k[i].astype(cache.dtype))
        np.testing.assert_array_equal(cache.value(position), v[i].astype(cache.dtype))
    # nothing else was written
    assert np.isfinite(cache.keys).sum() == k.size
    assert np.isfinite(cache.values[..., :head_dim]).sum() == v.size
    shared_out = FloatCache(3, head_dim, head_dim, 4, kind)
    for thread_count in (1, 2, 3):
        shared_out.store(k, v, positions, thread_count)
        np.testing.assert_array_equal(shared_out.keys, cache.keys)


def test_store_wraps_around() -> None:
    cache = FloatCache(2, 16, 16, 3, "f32")
    k = np.arange(5 * KEY_BLOCK * 32, dtype=np.float32).reshape(-1, 2, 16)
    cache.store(k, -k, range(len(k)))
    for position in range(2 * KEY_BLOCK, 5 * KEY_BLOCK):
        np.testing.assert_array_equal(cache.key(position), k[position])
        np.testing.assert_array_equal(cache.value(position), -k[position])


def test_halves_are_rounded_to_even_and_overflow_to_infinity() -> None:
    cache = FloatCache(1, 16, 16, 1, "f16")
    k = np.zeros((1, 1, 16), dtype=np.float32)
    k[0, 0, :9] = [2049.0, 2051.0, 65519.0, 65520.0, -1e10, np.nan, 2.0**-25, 3 * 2.0**-25, np.inf]
    cache.store(k, k, [3])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(cache.key(3)[0], k[0, 0].astype(np.float16))
        np.testing.assert_array_equal(cache.value(3)[0], k[0, 0].astype(np.float16))
