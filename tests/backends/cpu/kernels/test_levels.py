"""The lower kernel levels compute the same bits as the best one."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest
from kernels.call import TABLE, levels, lower_float_levels, require
from kernels.matrices import (
    activations,
    embed,
    encoded,
    matvec,
    panel,
    random_matrix,
    scale_bytes,
    sizes,
    tiled,
)

from llmgen.backends.cpu.kernels.layout import (
    PAIR_BLOCK,
    PAIR_D,
    PAIR_E,
    PAIR_E0,
    PAIR_E1,
    TILE_D,
    TILE_E,
    TILE_E0,
    TILE_E1,
)
from llmgen.backends.cpu.runtime import cpu
from llmgen.backends.cpu.runtime.cpu import LEVELS
from llmgen.backends.cpu.runtime.library import KernelLibrary
from llmgen.errors import KernelError

BEST, *LOWER = levels()

EVERY_WAY = (
    *("f16", "q4_0", "q5_1", "q8_0", "q4_k", "q6_k", "q2_k", "q3_k", "iq4_nl", "iq4_xs", "iq2_xs", "nvfp4"),
)
"""Types that use the dot products in every way there is: of 2 to 7 and of signed 8 bits, by blocks, halves and
superblocks, rows in lanes and one by one, with a zero point.  The others are made of the same parts."""
KEYS = list(TABLE) if os.environ.get("LLMGEN_TEST_EVERY_TYPE") else list(EVERY_WAY)


@pytest.fixture(scope="module", params=LOWER)
def level(request: pytest.FixtureRequest) -> str:
    names = [f"activations:{kind}" for kind in {k.activations for k in TABLE.values()} | {"tiles"}]
    types = [TABLE[key] for key in KEYS]
    rows = [k.embed for k in types] if _makes_floats_itself(request.param) else []
    require([*names, *rows, *(n for k in types for n in (k.matvec, k.panel))], request.param)
    return request.param


def _makes_floats_itself(level: str) -> bool:
    """Whether rows of an embedding, which have no dot product, are made in another way than at the best level."""
    return level in lower_float_levels()


@pytest.mark.parametrize("key", KEYS)
def test_the_same_bits(key: str, level: str) -> None:
    rng = np.random.default_rng(1)
    for n_cols in (sizes(key)[2], sizes(key)[-1]):
        m, x = random_matrix(key, 17, n_cols, rng), activations(9, n_cols, rng)
        kernels: tuple[Callable[..., np.ndarray], ...] = (matvec, panel)
        for kernel in kernels:
            np.testing.assert_array_equal(kernel(m, x, level=level), kernel(m, x))
        np.testing.assert_array_equal(matvec(m, x[:1], level=level), matvec(m, x[:1]))
        if _makes_floats_itself(level):
            np.testing.assert_array_equal(embed(m, [16, 3, 0], 2.5, level=level), embed(m, [16, 3, 0], 2.5))


@pytest.mark.parametrize("key", [k for k in KEYS if TABLE[k].activations != "float32"])
def test_the_same_integers_at_the_limits(key: str, level: str) -> None:
    """All weights and activations as large as they can be."""
    m = random_matrix(key, 16, 2 * max(TABLE[key].block, 128), np.random.default_rng(2))
    for byte in (0x00, 0x7F, 0x80, 0x81, 0xFF):
        blocks = m.data.reshape(16, m.n_cols // TABLE[key].block, -1)
        blocks[:, :, np.delete(np.arange(blocks.shape[2]), scale_bytes(key))] = byte
        x = np.where(np.arange(m.n_cols) % 3, 3.0, -3.0).astype(np.float32)[None].repeat(9, axis=0)
        x[1::2] *= -1
        np.testing.assert_array_equal(matvec(m, x, level=level), matvec(m, x))
        np.testing.assert_array_equal(panel(m, x, level=level), panel(m, x))


@pytest.mark.parametrize("kind", sorted({k.activations for k in TABLE.values()}))
def test_activations(kind: str, level: str) -> None:
    x = activations(3, 160, np.random.default_rng(3))
    np.testing.assert_array_equal(encoded(kind, x, level), encoded(kind, x))


def test_activation_tiles(level: str) -> None:
    x = activations(16, 160, np.random.default_rng(4))
    np.testing.assert_array_equal(by_token(tiled(x, level), level), by_token(tiled(x, BEST), BEST))


def by_token(tiles: np.ndarray, level: str) -> np.ndarray:
    """Tiles of 16 tokens as uint8 [16, blocks, 48]: the integers, then d, e and the two halves' e."""
    if level != "amx":
        parts = [tiles[..., :256].reshape(2, -1, 8, 8, 4).transpose(0, 3, 1, 2, 4).reshape(16, -1, 32)]
        for at in (TILE_D, TILE_E, TILE_E0, TILE_E1):
            floats = tiles[..., at : at + 32].reshape(2, -1, 8, 4).transpose(0, 2, 1, 3)
            parts.append(floats.reshape(16, -1, 4))
        return np.concatenate(parts, axis=2)
    pair = tiles.reshape(-1, PAIR_BLOCK)
    parts = [pair[:, :512].reshape(-1, 16, 32).transpose(1, 0, 2)]
    for at in (PAIR_D, PAIR_E, PAIR_E0, PAIR_E1):
        parts.append(pair[:, at : at + 64].reshape(-1, 16, 4).transpose(1, 0, 2))
    return np.concatenate(parts, axis=2)


def test_the_system_may_refuse_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU that has AMX in a system that does not grant it runs the next level."""
    features = dict.fromkeys({name for needed in cpu._REQUIRED.values() for name in needed}, True)
    monkeypatch.setattr(cpu, "_host_features", lambda: features)
    for granted, best in ((True, "amx"), (False, "avx512vnni")):
        monkeypatch.setattr(cpu, "_tiles_granted", lambda granted=granted: granted)
        cpu.best_level.cache_clear()
        assert cpu.best_level() == best
    monkeypatch.undo()
    cpu.best_level.cache_clear()


def test_a_level_that_the_processor_lacks_is_refused() -> None:
    with pytest.raises(KernelError, match="expected one of"):
        KernelLibrary("sse9")
    for level in set(LEVELS) - set(levels()):
        with pytest.raises(KernelError, match=f"the best here is {BEST}"):
            KernelLibrary(level)


def test_levels_are_not_a_matter_of_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zen 4 has AVX-512 VNNI without AVX-VNNI."""
    features = dict.fromkeys(("avx512vnni", "avx512bw", "avx512vl", "avx512f", "avx2", "fma", "f16c"), True)
    monkeypatch.setattr(cpu, "_host_features", lambda: features)
    for cached in (cpu.best_level, cpu.target):
        cached.cache_clear()
    try:
        assert cpu.best_level() == "avx512vnni"
        assert "-avx512f" in cpu.target("avx2").features
        with pytest.raises(KernelError, match="the best here is avx512vnni"):
            cpu.target("avxvnni")
    finally:
        for cached in (cpu.best_level, cpu.target):
            cached.cache_clear()
