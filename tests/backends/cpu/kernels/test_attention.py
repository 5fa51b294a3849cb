"""Attention over the cache against a plain softmax."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.caches import NO_WINDOW, Cache, generate, prompt
from kernels.call import ATTENTION, STORE, require

from llmgen.backends.cpu.kernels.kv import TABLE
from llmgen.backends.cpu.kernels.layout import KEY_BLOCK
from llmgen.backends.numpy.functions import attention
from naive.kv import asked, kept

HEAD_DIMS = (16, 40, 64, 80, 128, 256)
POSITIONS = (1, 15, 16, 17, KEY_BLOCK - 1, KEY_BLOCK, KEY_BLOCK + 1, 255, 256, 257, 700)
KINDS = tuple(TABLE)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    require([*ATTENTION, *STORE, "attention:combine"])


def blocks_for(n: int) -> int:
    return -(-n // KEY_BLOCK)


def scenario(
    n: int,
    group: int,
    head_dim: int,
    kind: str,
    seed: int,
    n_kv: int = 2,
    blocks: int = 0,
    value_dim: int = 0,
):  # type: ignore[no-untyped-def]
    """A filled cache of n positions, and q, k, v [n, heads, head_dim], k and v as the cache keeps them."""
    rng = np.random.default_rng(seed)
    q = rng.normal(0, 1, (n, group * n_kv, head_dim)).astype(np.float32) / np.float32(np.sqrt(head_dim)) * 2
    value_dim = value_dim or head_dim
    k, v = (rng.normal(0, 1, (n, n_kv, size)).astype(np.float32) for size in (head_dim, value_dim))
    cache = Cache(n_kv, head_dim, value_dim, blocks or blocks_for(n), kind)
    cache.store(k, v, range(n))
    keys, values = cache.kinds
    q = asked(q, keys).astype(np.float32)  # rounding them a second time changes nothing
    return cache, q, kept(k, keys), kept(v, values)


def twin(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    first: int,
    window: int = NO_WINDOW,
    cap: float = 0.0,
    slopes: np.ndarray | None = None,
    sinks: np.ndarray | None = None,
    causal: bool = True,
) -> np.ndarray:
    """Naive attention of the queries at positions first, first + 1, ..."""
    end = first + len(q)
    return attention(
        q.astype(np.float64),
        k[:end],
        v[:end],
        1.0,
        n_past=first,
        window=0 if window == NO_WINDOW else abs(window),
        chunked=window < 0,
        causal=causal,
        cap=cap,
        slopes=slopes,
        sinks=sinks,
    )


def assert_close(ours: np.ndarray, expected: np.ndarray, cap: float = 0.0) -> None:
    # a capped score is off by the precision of tanh times the cap
    np.testing.assert_allclose(ours, expected, rtol=0, atol=6e-6 + 3e-7 * cap)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_head_sizes(head_dim: int, kind: str) -> None:
    n = 2 * KEY_BLOCK + 21
    cache, q, k, v = scenario(n, 2, head_dim, kind, 1)
    for first in (0, 5, n - 13):
        assert_close(prompt(cache, q[first:], first), twin(q[first:], k, v, first))
    assert_close(generate([cache], q[-1:], [n - 1]), twin(q[-1:], k, v, n - 1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", range(1, 10))
def test_group_sizes(group: int, kind: str) -> None:
    n = KEY_BLOCK + 19
    cache, q, k, v = scenario(n, group, 40, kind, 2)
    assert_close(prompt(cache, q[7:], 7), twin(q[7:], k, v, 7))
    for position in (0, KEY_BLOCK, n - 1):
        ours = generate([cache], q[position : position + 1], [position])
        assert_close(ours, twin(q[position : position + 1], k, v, position))


@pytest.mark.parametrize("window", [NO_WINDOW, 1, 17, KEY_BLOCK, 100, 300, 1000, -1, -17, -KEY_BLOCK, -300])
def test_positions_and_windows(window: int) -> None:
    n = max(POSITIONS) + 12
    cache, q, k, v = scenario(n, 3, 16, "f32", 3, n_kv=1)
    for position in POSITIONS:
        one, some = q[position : position + 1], q[position : position + 11]
        assert_close(generate([cache], one, [position], window), twin(one, k, v, position, window))
        assert_close(prompt(cache, some, position, window), twin(some, k, v, position, window))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 7, KEY_BLOCK + 3, 3 * KEY_BLOCK + 1])
def test_without_causal_order_a_run_sees_itself(n: int, kind: str) -> None:
    first = 5
    cache, q, k, v = scenario(first + n, 3, 40, kind, 5)
    expected = twin(q[first:], k, v, first, causal=False)
    for threads in (1, 3):
        assert_close(prompt(cache, q[first:], first, n_threads=threads, causal=False), expected)


@pytest.mark.parametrize("cap", [0.3, 1.0, 50.0])
@pytest.mark.parametrize("window", [NO_WINDOW, 50])
def test_soft_caps(cap: float, window: int) -> None:
    n = 2 * KEY_BLOCK + 5
    cache, q, k, v = scenario(n, 2, 64, "f16", 4)
    assert_close(prompt(cache, 5 * q, 0, window, cap), twin(5 * q, k, v, 0, window, cap), cap)
    one = 5 * q[-1:]
    assert_close(generate([cache], one, [n - 1], window, cap), twin(one, k, v, n - 1, window, cap), cap)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dims", [(40, 16), (16, 40), (128, 5), (24, 192)])
def test_values_of_another_size_than_keys(dims: tuple[int, int], kind: str) -> None:
    n = KEY_BLOCK + 21
    cache, q, k, v = scenario(n, 3, dims[0], kind, 8, value_dim=dims[1])
    assert_close(prompt(cache, q[9:], 9), twin(q[9:], k, v, 9))
    assert_close(generate([cache], q[-1:], [n - 1]), twin(q[-1:], k, v, n - 1))


@pytest.mark.parametrize("window", [NO_WINDOW, 50])
def test_slopes_and_sinks(window: int) -> None:
    """Scores fall with the distance; a sink takes part in the softmax once, however many blocks there are."""
    n, heads = 3 * KEY_BLOCK + 5, 6
    cache, q, k, v = scenario(n, 3, 40, "f32", 9)
    slopes = np.array([0, 0.5, 0.25, 0.01, 2.0, 0.003], np.float32)
    sinks = np.array([3, -2, 0, 40, -200, 1], np.float32)
    assert len(slopes) == len(sinks) == heads
    for special in ({"slopes": slopes}, {"sinks": sinks}, {"slopes": slopes, "sinks": sinks}):
        ours = prompt(cache, q[7:], 7, window, **special)
        assert_close(ours, twin(q[7:], k, v, 7, window, **special))
        for position in (0, KEY_BLOCK - 1, n - 1):
            one = q[position : position + 1]
            ours = generate([cache], one, [position], window, **special)
            assert_close(ours, twin(one, k, v, position, window, **special))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [1, 40, KEY_BLOCK, KEY_BLOCK + 1, 130])
def test_rings(window: int, kind: str) -> None:
    """A cache of fewer blocks than the context: each chunk is stored, then attends."""
    chunk, n = 48, 9 * KEY_BLOCK + 7
    cache, q, k, v = scenario(n, 2, 40, kind, 5, blocks=blocks_for(window + chunk) + 1)
    cache.forget()
    for first in range(0, n, chunk):
        last = min(first + chunk, n)
        cache.store(k[first:last].astype(np.float32), v[first:last].astype(np.float32), range(first, last))
        ours = prompt(cache, q[first:last], first, window)
        assert_close(ours, twin(q[first:last], k, v, first, window))
        one = q[last - 1 : last]
        assert_close(generate([cache], one, [last - 1], window), twin(one, k, v, last - 1, window))


@pytest.mark.parametrize("kind", KINDS)
def test_threads_and_chunks_do_not_change_a_bit(kind: str) -> None:
    n = 3 * KEY_BLOCK + 11
    cache, q, _, _ = scenario(n, 3, 80, kind, 6)
    for window in (NO_WINDOW, 70):
        whole = prompt(cache, q, 0, window)
        for n_threads in (2, 3, 5):
            np.testing.assert_array_equal(prompt(cache, q, 0, window, n_threads=n_threads), whole)
        for cuts in ((0, 1, 2, 9, n), (0, 8, 16, 100, n), (0, 13, 40, 41, n)):
            parts = [prompt(cache, q[a:b], a, window) for a, b in zip(cuts, cuts[1:], strict=False)]
            np.testing.assert_array_equal(np.concatenate(parts), whole)
        alone = generate([cache], q[-1:], [n - 1], window)
        for n_threads in (2, 3, 5):
            np.testing.assert_array_equal(
                generate([cache], q[-1:], [n - 1], window, n_threads=n_threads), alone
            )


def test_sequences_do_not_depend_on_their_company() -> None:
    positions = [0, 5, KEY_BLOCK - 1, KEY_BLOCK, 3 * KEY_BLOCK + 3, 1, 2 * KEY_BLOCK, 77]
    made = [scenario(p + 1, 2, 40, "f16", 10 + p, blocks=blocks_for(max(positions) + 1)) for p in positions]
    caches, q = [m[0] for m in made], np.concatenate([m[1][-1:] for m in made])
    for window in (NO_WINDOW, 30):
        together = generate(caches, q, positions, window, n_threads=3)
        for i, position in enumerate(positions):
            np.testing.assert_array_equal(
                generate([caches[i]], q[i : i + 1], [position], window)[0], together[i]
            )


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
@pytest.mark.parametrize("window", [NO_WINDOW, 1, 70, -100])
def test_tokens_that_attend_together_do_not_change_a_bit(window: int, kind: str) -> None:
    """A sequence's tokens read a key block once, beside those of others; borders of blocks and windows lie between."""
    sizes = ((3 * KEY_BLOCK + 4, 5), (205, 2), (1, 1))  # tokens of a sequence, and how many of them attend
    made = [scenario(n, 3, 40, kind, n, blocks=6) for n, _ in sizes]
    rows = [(i, p) for i, (n, count) in enumerate(sizes) for p in range(n - count, n)]
    caches, positions = [made[i][0] for i, _ in rows], [p for _, p in rows]
    q = np.stack([made[i][1][p] for i, p in rows])
    alone = [generate([c], x[None], [p], window)[0] for c, x, p in zip(caches, q, positions, strict=True)]
    for n_threads in (1, 2, 3, 5):
        for together in (1, 2, 4, 8):
            ours = generate(caches, q, positions, window, n_threads=n_threads, together=together)
            np.testing.assert_array_equal(ours, np.stack(alone))


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
@pytest.mark.parametrize("local", [1, 20, KEY_BLOCK, 100, 1000])
def test_a_local_window_sees_the_first_block_and_the_last_keys(local: int, kind: str) -> None:
    n = 5 * KEY_BLOCK + 3
    cache, q, k, v = scenario(n, 3, 40, kind, 13)
    slopes, sinks = np.linspace(0, 0.3, 6).astype(np.float32), np.linspace(-2, 2, 6).astype(np.float32)
    for first in (0, KEY_BLOCK - 2, n - 5):
        positions = range(first, first + 5)
        for special in ({}, {"slopes": slopes, "sinks": sinks}):
            options = {"local": local, "n_threads": 3, **special}
            ours = generate([cache] * 5, q[first : first + 5], positions, **options)
            for i, p in enumerate(positions):
                seen = np.array([j < KEY_BLOCK or j > p - local for j in range(p + 1)])
                masked = np.where(seen[:, None, None], k[: p + 1], np.float32(0.0))
                assert_close(ours[i], over_seen(q[p], masked, v[: p + 1], seen, **special))
                np.testing.assert_array_equal(
                    generate([cache], q[p : p + 1], [p], local=local, together=1, **special)[0], ours[i]
                )
    windowed = generate([cache], q[-1:], [n - 1], 50)  # a layer with a window of its own
    np.testing.assert_array_equal(generate([cache], q[-1:], [n - 1], 50, local=local), windowed)


def over_seen(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    seen: np.ndarray,
    slopes: np.ndarray | None = None,
    sinks: np.ndarray | None = None,
) -> np.ndarray:
    """A softmax over the keys that are seen: q [heads, dim], k and v [n, n_kv, dim] -> [heads, dim]."""
    out = []
    for head, row in enumerate(q.astype(np.float64)):
        shared = head // (len(q) // k.shape[1])
        scores = k[:, shared].astype(np.float64) @ row
        if slopes is not None:
            scores -= slopes[head] * np.arange(len(k) - 1, -1, -1)
        weights = np.where(seen, np.exp(scores), 0.0)
        total = weights.sum() + (0.0 if sinks is None else np.exp(np.float64(sinks[head])))
        out.append(weights @ v[:, shared] / total)
    return np.stack(out)


@pytest.mark.parametrize("kind", KINDS)
def test_large_scores_do_not_overflow(kind: str) -> None:
    n = KEY_BLOCK + 30
    cache, q, k, v = scenario(n, 2, 64, kind, 7)
    ours, expected = prompt(cache, 300 * q, 0), twin(300 * q, k, v, 0)
    assert np.isfinite(ours).all()
    np.testing.assert_allclose(ours, expected, atol=2e-3)  # scores of thousands leave fewer digits
    generated = generate([cache], 300 * q[-1:], [n - 1])
    np.testing.assert_allclose(generated, expected[-1:], atol=2e-3)


def test_a_bad_key_or_query_is_seen_and_stays_where_it_belongs() -> None:
    n = KEY_BLOCK + 40
    for value in (np.nan, np.inf):
        cache, q, k, v = scenario(n, 2, 40, "f32", 8)
        clean = prompt(cache, q, 0)
        k[50, 1, 3] = value  # the keys of one head at one position
        cache.store(k.astype(np.float32), v.astype(np.float32), range(n))
        ours = prompt(cache, q, 0)
        np.testing.assert_array_equal(ours[:50], clean[:50])
        np.testing.assert_array_equal(ours[:, :2], clean[:, :2])
        if np.isnan(value):
            assert np.isnan(ours[50:, 2:]).all()
            assert np.isnan(generate([cache], q[-1:], [n - 1])[0, 2:]).all()
        # no query behind the window sees it
        np.testing.assert_array_equal(prompt(cache, q, 0, 20)[70:], prompt(cache, q[70:], 70, 20))
        assert np.isfinite(prompt(cache, q, 0, 20)[70:]).all()
    cache, q, k, v = scenario(n, 2, 40, "f32", 9)
    clean = prompt(cache, q, 0)
    q[20, 1, 0] = np.nan
    ours = prompt(cache, q, 0)
    assert np.isnan(ours[20, 1]).all()
    ours[20, 1] = clean[20, 1]
    np.testing.assert_array_equal(ours, clean)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [NO_WINDOW, 30, -20])
def test_a_bad_value_of_a_prompt_reaches_no_token_that_does_not_see_it(window: int, kind: str) -> None:
    """Tokens attend together; some come before the value that is bad, or their window has left it behind."""
    n, head_dim = 2 * KEY_BLOCK + 11, 40  # no whole vectors
    for value in (np.inf, np.nan):
        for bad in (13, KEY_BLOCK + 20, n - 1):
            cache, q, k, v = scenario(n, 3, head_dim, kind, 8)
            clean = prompt(cache, q, 0, window)
            v[bad, 1, head_dim - 1] = value
            cache.store(k.astype(np.float32), v.astype(np.float32), range(n))
            ours = prompt(cache, q, 0, window)
            marked = np.broadcast_to((np.arange(n) == bad)[:, None, None], v.shape)
            sees = twin(q, k, marked, 0, window)[:, 3:].any(axis=(1, 2))
            assert sees.any()
            np.testing.assert_array_equal(ours[~sees], clean[~sees])
            np.testing.assert_array_equal(ours[:, :3], clean[:, :3])  # the other kv head
            assert not np.isfinite(ours[sees][:, 3:, -1]).any()
            pieces = [prompt(cache, q[i:j], i, window) for i, j in ((0, 5), (5, 70), (70, n))]
            np.testing.assert_array_equal(np.concatenate(pieces), ours)


@pytest.mark.parametrize("kind", ["f32", "q8_0"])
@pytest.mark.parametrize("window", [NO_WINDOW, 3, -KEY_BLOCK])
def test_a_bad_value_reaches_no_token_that_does_not_see_it(window: int, kind: str) -> None:
    """Tokens attend together; one comes before the value that is bad, or its window has left it behind."""
    n = KEY_BLOCK + 5
    for value in (np.inf, np.nan):
        for bad in (KEY_BLOCK - 5, KEY_BLOCK + 1, n - 1):
            cache, q, k, v = scenario(n, 2, 40, kind, 8)
            v[bad, 1, 3] = value
            cache.store(k.astype(np.float32), v.astype(np.float32), range(n))
            first = n - 8
            ours = generate([cache] * 8, q[first:], range(first, n), window)
            alone = [generate([cache], q[p : p + 1], [p], window)[0] for p in range(first, n)]
            np.testing.assert_array_equal(ours, np.stack(alone))
            marked = np.broadcast_to((np.arange(n) == bad)[:, None, None], v.shape)
            sees = [twin(q[p : p + 1], k, marked, p, window).any() for p in range(first, n)]
            assert sees == [not np.isfinite(x).all() for x in ours]
            assert any(sees)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_far_below_the_largest_weigh_exactly_nothing(kind: str) -> None:
    """No weight is so small that its products are subnormal: these take a hundred times as long."""
    n = 3 * KEY_BLOCK
    for top in (0, KEY_BLOCK + 5, n - 1):  # tiny weights come before the largest and after it
        k, v = np.zeros((n, 1, 16), np.float32), np.ones((n, 1, 16), np.float32)
        k[:, 0, 0] = -np.linspace(66, 1e3, n)
        k[top, 0, 0], v[top] = 0.0, 0.0
        cache = Cache(1, 16, 16, blocks_for(n), kind)
        cache.store(k, v, range(n))
        q = np.zeros((1, 1, 16), np.float32)
        q[..., 0] = 1.0
        assert not prompt(cache, q, n - 1).any()
        assert not generate([cache], q, [n - 1]).any()
