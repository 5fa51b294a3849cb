"""The keys that an indexer chooses, against a sort."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.caches import Cache
from kernels.call import ControlBlock, aligned, require, step

from llmgen.backends.cpu.kernels.layout import KEY_BLOCK, KEY_GROUP
from naive.kv import kept

LENGTHS = (1, 15, 16, KEY_BLOCK, KEY_BLOCK + 1, 300)


def chosen(scores: np.ndarray, positions: list[int], k: int, n_threads: int = 1) -> list[list[int]]:
    """scores [n, keys], of which a token sees those up to its position -> the positions of the k largest."""
    require(["indexer:choose"])
    table = aligned(scores.shape)
    table[:] = scores
    out = aligned((len(positions), 1 + k), np.int64, -1)
    for thread in range(n_threads):
        step(
            "indexer:choose",
            thread,
            n_threads,
            scores=table,
            scores_stride=table.strides[0],
            k=k,
            out=out,
            out_stride=out.strides[0],
            scratch=aligned(256, np.int64, -1),
            control=ControlBlock(len(positions), positions=positions),
        )
    return [row[1 : 1 + row[0]].tolist() for row in out]


def expected(scores: np.ndarray, position: int, k: int) -> list[int]:
    return sorted(np.argsort(-scores[: position + 1], kind="stable")[:k].tolist())


@pytest.mark.parametrize("k", [1, 7, 64, 299])
def test_the_largest_are_chosen_in_order(k: int) -> None:
    rng = np.random.default_rng(1)
    positions = [n - 1 for n in LENGTHS]
    scores = rng.normal(0, 1, (len(positions), 320)).astype(np.float32)
    scores[:, ::3] = np.round(scores[:, ::3])  # equal ones: the earlier comes first
    scores[2:4, :40] = 0.0
    found = [expected(row, position, k) for row, position in zip(scores, positions, strict=True)]
    for n_threads in (1, 2, 5):
        assert chosen(scores, positions, k, n_threads) == found


def test_extreme_scores() -> None:
    scores = np.zeros((1, 64), np.float32)
    scores[0, :6] = [-np.inf, np.inf, -0.0, 1e-45, -1e-45, 3e38]
    assert chosen(scores, [5], 2) == [[1, 5]]
    assert chosen(scores, [5], 3) == [[1, 3, 5]]
    scores[0, 4] = np.nan  # is not lost: the token's result is one
    assert chosen(scores, [5], 1) == [[4]]


@pytest.mark.parametrize("kind", ["f16", "f32", "q8_0"])
@pytest.mark.parametrize("key_dim", [16, 40])
def test_scores(key_dim: int, kind: str) -> None:
    require([f"indexer:scores_{kind}"])
    rng, n, heads = np.random.default_rng(2), KEY_BLOCK + 21, 5
    cache = Cache(1, key_dim, 1, 2, kind)
    k = rng.normal(0, 1, (n, 1, key_dim)).astype(np.float32)
    cache.store(k, np.zeros((n, 1, 1), np.float32), range(n))
    positions = [0, 15, 16, KEY_BLOCK, n - 1]
    q, weights = aligned((len(positions), heads * key_dim)), aligned((len(positions), heads))
    q[:], weights[:] = rng.normal(0, 1, q.shape), rng.normal(0, 1, weights.shape)
    results = []
    for n_threads in (1, 3):
        out = aligned((len(positions), 2 * KEY_BLOCK), fill=-7.5)
        for thread in range(n_threads):
            step(
                f"indexer:scores_{kind}",
                thread,
                n_threads,
                q=q,
                q_stride=q.strides[0],
                weights=weights,
                weights_stride=weights.strides[0],
                heads=heads,
                key_dim=key_dim,
                k_at=cache.k_at,
                out=out,
                out_stride=out.strides[0],
                scratch=aligned(key_dim * KEY_GROUP),
                control=cache.control(positions),
            )
        results.append(out)
    keys = kept(k, kind)[:, 0].astype(np.float64)
    for i, position in enumerate(positions):
        products = np.maximum(q[i].reshape(heads, key_dim).astype(np.float64) @ keys[: position + 1].T, 0)
        for out in results:
            np.testing.assert_allclose(out[i, : position + 1], weights[i] @ products, rtol=0, atol=2e-5)
    np.testing.assert_array_equal(results[0], results[1])
