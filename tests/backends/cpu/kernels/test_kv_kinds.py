"""Every kind of KV cache: what is stored, and every feature of attention over it, against its formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.caches import NO_WINDOW, Cache, generate, prompt
from kernels.call import lower_float_levels, require

from llmgen.backends.cpu.kernels.kv import TABLE, attention_kernel, kinds_of, store_kernel
from llmgen.backends.cpu.kernels.layout import KEY_BLOCK
from llmgen.backends.numpy.functions import attention
from naive.kv import BLOCKS, NF4, asked, kept

MIXED = ("q8_0 f16", "nf4 q4_0")
KINDS = (*TABLE, *MIXED)
SCALED = tuple(BLOCKS)
SIZES = (1, 5, 15, 16, 31, 32, 33, 40, 64, 72, 80, 96, 127, 128, 576)


def kernels(kinds: tuple[str, ...]) -> list[str]:
    pairs = [(kind.split() * 2)[:2] for kind in kinds]
    steps = [attention_kernel(role, *pair) for role in ("blocks", "tiles") for pair in pairs]
    return [*steps, *(store_kernel(*pair) for pair in pairs)]


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    require([*kernels(KINDS), "attention:combine"])


# ---- what is stored -----------------------------------------------------------------------


def numbers(codes: np.ndarray, kind: str) -> np.ndarray:
    """What codes stand for, before their scale."""
    if kind == "q8_0":
        return codes.view(np.int8).astype(np.float64)
    return NF4[codes].astype(np.float64) if kind == "nf4" else codes.astype(np.float64) - 8


def read_keys(cache: Cache, n: int) -> np.ndarray:
    """The keys of the first n positions as the layout of a scaled kind has them: [n, n_kv, key_dim]."""
    kind = cache.kinds[0]
    memory = cache.memory[: cache.v_at].reshape(cache.n_kv, cache.blocks * 4, -1)
    parts, at = [], 0
    for first in range(0, cache.key_dim, BLOCKS[kind]):
        size = min(BLOCKS[kind], cache.key_dim - first)
        loads = -(-size // (4 if kind == "q8_0" else 8))
        codes = memory[:, :, at : at + 64 * loads].reshape(cache.n_kv, -1, loads, 1, 16, 4)
        if kind != "q8_0":
            codes = np.concatenate([codes & 15, codes >> 4], axis=3)
        # [n_kv, groups, loads, quads of a load, 16, 4] -> [n_kv, groups, values, 16]
        codes = codes.swapaxes(4, 5).reshape(cache.n_kv, memory.shape[1], -1, 16)[:, :, :size]
        at += 64 * loads
        scales = memory[:, :, at : at + 32].copy().view(np.float16).astype(np.float64)
        at += 32
        parts.append(numbers(codes, kind) * scales[:, :, None, :])
    keys = np.concatenate(parts, axis=2)  # [n_kv, groups, key_dim, 16]
    return keys.transpose(1, 3, 0, 2).reshape(-1, cache.n_kv, cache.key_dim)[:n]


def read_values(cache: Cache, n: int) -> np.ndarray:
    kind = cache.kinds[1]
    memory = cache.memory[cache.v_at :].reshape(cache.n_kv * cache.blocks, -1)
    parts, at = [], 0
    for first in range(0, cache.value_dim, BLOCKS[kind]):
        size = min(BLOCKS[kind], cache.value_dim - first)
        row = -(-size // 16) * 16 if kind == "q8_0" else -(-size // 32) * 16
        codes = memory[:, at : at + 64 * row].reshape(-1, 64, row)
        if kind != "q8_0":
            pairs = codes.reshape(-1, 64, row // 16, 16)
            codes = np.stack([pairs & 15, pairs >> 4], axis=3).reshape(-1, 64, 2 * row)
        at += 64 * row
        scales = memory[:, at : at + 128].copy().view(np.float16).astype(np.float64)
        at += 128
        parts.append(numbers(codes[:, :, :size], kind) * scales[:, :, None])
    values = np.concatenate(parts, axis=2).reshape(cache.n_kv, -1, cache.value_dim)
    return values.transpose(1, 0, 2)[:n]


@pytest.mark.parametrize("kind", SCALED)
@pytest.mark.parametrize("size", SIZES)
def test_codes_and_scales(size: int, kind: str) -> None:
    n, rng = KEY_BLOCK + 9, np.random.default_rng(size)
    k, v = (rng.normal(0, 1, (n, 2, size)).astype(np.float32) for _ in range(2))
    k[3], v[4] = 0, 0
    v[6, :, 0] = 3e4
    cache = Cache(2, size, size, 2, kind)
    cache.store(k * np.float32(1e-7), v, range(n))  # scales that f16 has few digits for, or none
    np.testing.assert_array_equal(read_keys(cache, n), kept(k * np.float32(1e-7), kind))
    cache.store(k, v, range(n))
    np.testing.assert_array_equal(read_keys(cache, n), kept(k, kind))
    np.testing.assert_array_equal(read_values(cache, n), kept(v, kind))
    again = Cache(2, size, size, 2, kind)
    again.store(kept(k, kind).astype(np.float32), kept(v, kind).astype(np.float32), range(n), n_threads=3)
    np.testing.assert_array_equal(again.memory, cache.memory)  # what is kept is kept as it is


def test_errors_are_as_large_as_the_kinds_steps() -> None:
    x = np.random.default_rng(0).normal(0, 1, (500, 128)).astype(np.float32)
    error = {kind: float(np.sqrt(np.mean((kept(x, kind) - x) ** 2))) for kind in TABLE}
    assert error["f32"] == 0
    assert error["f16"] < error["bf16"] < error["q8_0"] < 0.01 < min(error["q4_0"], error["nf4"])
    assert max(error["q4_0"], error["nf4"]) < 0.1  # nf4 has one scale for twice as many


@pytest.mark.parametrize("kind", SCALED)
def test_queries_lose_hardly_anything(kind: str) -> None:
    """Keys of integers meet queries of 16 bits, and give almost what floats do."""
    n, rng = KEY_BLOCK + 9, np.random.default_rng(5)
    q, k, v = (rng.normal(0, 1, (n, 2, 80)).astype(np.float32) for _ in range(3))
    q *= np.float32(0.2)
    q[-1, :, 70] = 3
    cache, exact = Cache(2, 80, 80, 2, kind), Cache(2, 80, 80, 2, "f32")
    cache.store(k, v, range(n))
    exact.store(kept(k, kind).astype(np.float32), kept(v, kind).astype(np.float32), range(n))
    ours, floats = (generate([c], q[-1:], [n - 1]) for c in (cache, exact))
    np.testing.assert_allclose(ours, floats, rtol=0, atol=3e-4)


@pytest.mark.parametrize("kind", SCALED)
def test_a_bad_number_reaches_the_result_and_stays_at_its_position(kind: str) -> None:
    n, rng = 40, np.random.default_rng(3)
    q, k, v = (rng.normal(0, 1, (n, 2, 40)).astype(np.float32) for _ in range(3))
    cache = Cache(2, 40, 40, 1, kind)
    cache.store(k, v, range(n))
    clean = prompt(cache, q, 0)
    for bad in (np.nan, np.inf, -np.inf, 1e30):
        for place in (3, 38):  # in a whole vector, and in the rest of a head
            broken = k.copy()
            broken[20, 1, place] = bad
            cache.store(broken, v, range(n))
            ours = prompt(cache, q, 0)
            np.testing.assert_array_equal(ours[:20], clean[:20])
            np.testing.assert_array_equal(ours[:, 0], clean[:, 0])
            assert np.isnan(ours[20:, 1]).all()
            assert np.isnan(generate([cache], q[-1:], [n - 1])[0, 1]).all()
            cache.store(k, v, range(n))
            asking = q.copy()
            asking[-1, 1, place] = bad
            ours = generate([cache], asking[-1:], [n - 1])[0]
            np.testing.assert_array_equal(ours[0], generate([cache], q[-1:], [n - 1])[0, 0])
            assert np.isnan(ours[1]).all() or abs(bad) < np.inf


# ---- what attention makes of it -------------------------------------------------------------

FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "cap": {"cap": 2.0},
    "slopes": {"slopes": np.array([0, 0.5, 0.25, 0.01, 2.0, 0.003], np.float32)},
    "sinks": {"sinks": np.array([3, -2, 0, 40, -200, 1], np.float32)},
    "all": {
        "cap": 5.0,
        "slopes": np.array([0.1, 0.5, 0.25, 0.01, 2.0, 0.003], np.float32),
        "sinks": np.array([3, -2, 0, 4, -200, 1], np.float32),
    },
}


def formula(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, first: int, window: int, **special: Any
) -> np.ndarray:
    """Attention of the queries at first, first + 1, ... over what the cache keeps of k and v."""
    end = first + len(q)
    seen = {"window": 0 if window == NO_WINDOW else abs(window), "chunked": window < 0}
    return attention(q.astype(np.float64), k[:end], v[:end], 1.0, n_past=first, **seen, **special)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("window", [NO_WINDOW, 50, -70])
def test_features(feature: str, window: int, kind: str) -> None:
    """The product of kinds and features, heads that blocks do not divide, rings, both roles."""
    chunk, n, special = 48, 5 * KEY_BLOCK + 7, FEATURES[feature]
    limit = 6e-6 + 3e-7 * special.get("cap", 0.0)
    blocks = -(-n // KEY_BLOCK) if window == NO_WINDOW else -(-(abs(window) + chunk) // KEY_BLOCK) + 1
    for key_dim, value_dim in ((72, 72), (40, 96), (80, 24)):
        rng = np.random.default_rng(key_dim)
        q = (rng.normal(0, 2, (n, 6, key_dim)) / np.sqrt(key_dim)).astype(np.float32)
        k, v = (rng.normal(0, 1, (n, 2, size)).astype(np.float32) for size in (key_dim, value_dim))
        cache = Cache(2, key_dim, value_dim, blocks, kind)
        ks, vs = (kept(x, kind) for x, kind in zip((k, v), cache.kinds, strict=True))
        for first in range(0, n, chunk):
            last = min(first + chunk, n)
            cache.store(k[first:last], v[first:last], range(first, last))
            expected = formula(q[first:last], ks, vs, first, window, **special)
            ours = prompt(cache, q[first:last], first, window, **special)
            np.testing.assert_allclose(ours, expected, rtol=0, atol=limit)
            one = generate([cache], q[last - 1 : last], [last - 1], window, **special)
            asking = asked(q[last - 1 : last], cache.kinds[0])
            expected = formula(asking, ks, vs, last - 1, window, **special)
            np.testing.assert_allclose(one, expected, rtol=0, atol=limit)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("key_dim", "value_dim"), [(576, 512), (1, 1), (5, 128), (33, 47)])
def test_unusual_heads(key_dim: int, value_dim: int, kind: str) -> None:
    """Latent attention's sizes, and heads with an odd number of values."""
    n, rng, limit = KEY_BLOCK + 21, np.random.default_rng(4), 2e-5 if key_dim > 500 else 6e-6
    for group in (1, 2, 5, 9):
        q = (rng.normal(0, 2, (n, group, key_dim)) / np.sqrt(key_dim)).astype(np.float32)
        k, v = (rng.normal(0, 1, (n, 1, size)).astype(np.float32) for size in (key_dim, value_dim))
        cache = Cache(1, key_dim, value_dim, 2, kind)
        cache.store(k, v, range(n))
        ks, vs = (kept(x, kind) for x, kind in zip((k, v), cache.kinds, strict=True))
        expected = formula(q[60:], ks, vs, 60, NO_WINDOW)
        np.testing.assert_allclose(prompt(cache, q[60:], 60), expected, rtol=0, atol=limit)
        expected = formula(asked(q[-1:], cache.kinds[0]), ks, vs, n - 1, NO_WINDOW)
        np.testing.assert_allclose(generate([cache], q[-1:], [n - 1]), expected, rtol=0, atol=limit)


@pytest.mark.parametrize("kind", MIXED)
def test_threads_chunks_and_company_do_not_change_a_bit(kind: str) -> None:
    n, rng = 3 * KEY_BLOCK + 11, np.random.default_rng(6)
    q, k, v = (rng.normal(0, 1, (n, heads, 80)).astype(np.float32) for heads in (6, 2, 2))
    cache, other = (Cache(2, 80, 80, 4, kind) for _ in range(2))
    cache.store(k, v, range(n), n_threads=3)
    other.store(v, k, range(n))
    whole = prompt(cache, q, 0)
    np.testing.assert_array_equal(prompt(cache, q, 0, n_threads=3), whole)
    for cuts in ((0, 1, 2, 9, n), (0, 13, 40, 41, n)):
        parts = [prompt(cache, q[a:b], a) for a, b in zip(cuts, cuts[1:], strict=False)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    alone = generate([cache], q[-1:], [n - 1])
    both = generate([other, cache], np.concatenate([q[:1], q[-1:]]), [0, n - 1], n_threads=3)
    np.testing.assert_array_equal(both[1:], alone)


@pytest.mark.parametrize("level", lower_float_levels())
def test_lower_levels(level: str) -> None:
    """The loads of every kind differ between processors, the bits do not."""
    n, rng, kinds = (
        KEY_BLOCK + 21,
        np.random.default_rng(7),
        MIXED,
    )
    require([*kernels(kinds), "attention:combine"], level)
    q, k, v = (rng.normal(0, 1, (n, heads, 40)).astype(np.float32) for heads in (14, 2, 2))
    for kind in kinds:
        cache, lower = (Cache(2, 40, 40, 2, kind) for _ in range(2))
        require(kernels((kind,)))
        cache.store(k, v, range(n))
        lower.store(k, v, range(n), level=level)
        np.testing.assert_array_equal(lower.memory, cache.memory)
        for window, cap in ((NO_WINDOW, 0.0), (30, 2.0)):
            ours = prompt(lower, q, 0, window, cap, level=level)
            np.testing.assert_array_equal(ours, prompt(cache, q, 0, window, cap))
            one = generate([lower], q[-1:], [n - 1], window, cap, level=level)
            np.testing.assert_array_equal(one, generate([cache], q[-1:], [n - 1], window, cap))


def test_names_of_kernels() -> None:
    for k in TABLE.values():
        for v in TABLE.values():
            name = attention_kernel("tiles", k.key, v.key).split(":")[1]
            assert kinds_of(name) == ("tiles", k, v)
    for wrong in ("tiles_f16", "tiles_f16_f8", "tiles_q8_0", "blocks"):
        with pytest.raises(AttributeError):
            kinds_of(wrong)
