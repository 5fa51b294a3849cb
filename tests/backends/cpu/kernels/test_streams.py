"""Sums of a token's parts and doubly stochastic matrices, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.call import ControlBlock, aligned, require, step

from llmgen.backends.cpu.kernels import stream_arguments  # noqa: F401 - the tables of the steps
from llmgen.backends.numpy import functions


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    require(["streams:blend", "streams:sinkhorn"])


def blended(x: np.ndarray, weights: np.ndarray, n_threads: int = 0) -> np.ndarray:
    """x [n, n_in, size], weights [n, n_in, n_out] or [n_in, n_out] -> [n, n_out, size]."""
    n, n_in, size = x.shape
    n_out = weights.shape[-1]
    a, out = aligned((n, n_in * size + 16), fill=np.nan), aligned((n + 1, n_out * size + 16), fill=-7.5)
    a[:, : n_in * size] = x.reshape(n, -1)
    table = aligned(weights.shape)
    table[...] = weights
    for thread in range(max(n_threads, 1)):
        step(
            "streams:blend",
            thread,
            max(n_threads, 1),
            x=a,
            x_stride=a.strides[0],
            weights=table,
            weights_stride=table.strides[0] if weights.ndim == 3 else 0,
            n_in=n_in,
            n_out=n_out,
            n=size,
            out=out,
            out_stride=out.strides[0],
            split_tokens=int(n_threads > 0),
            control=ControlBlock(n),
        )
    assert np.all(out[n] == -7.5)
    assert np.all(out[:, n_out * size :] == -7.5)  # nothing is written behind the last part
    return out[:n, : n_out * size].reshape(n, n_out, size)


@pytest.mark.parametrize(
    ("n_in", "n_out", "size"), [(4, 4, 64), (4, 1, 40), (1, 4, 7), (3, 2, 16), (1, 1, 1)]
)
def test_blend(n_in: int, n_out: int, size: int) -> None:
    rng = np.random.default_rng(size)
    x = rng.normal(0, 1, (19, n_in, size)).astype(np.float32)
    for weights in (rng.normal(0, 1, (19, n_in, n_out)), rng.normal(0, 1, (n_in, n_out))):
        weights = weights.astype(np.float32)
        table = np.broadcast_to(weights, (19, n_in, n_out)).astype(np.float64)
        ours = blended(x, weights)
        np.testing.assert_allclose(ours, np.einsum("tij,tin->tjn", table, x), rtol=1e-5, atol=1e-5)
        for n_threads in (1, 2, 5):
            np.testing.assert_array_equal(blended(x, weights, n_threads), ours)


def test_a_token_with_nan_leaves_the_others_alone() -> None:
    x = np.ones((3, 2, 32), np.float32)
    x[1, 1, 5] = np.nan
    out = blended(x, np.ones((2, 1), np.float32))
    assert np.argwhere(np.isnan(out)).tolist() == [[1, 0, 5]]


def balanced(x: np.ndarray, rounds: int, eps: float, n_threads: int = 0) -> np.ndarray:
    """x [n, size, size]."""
    n, size, _ = x.shape
    wide = -(-size * size // 16) * 16
    a, out = aligned((n, wide), fill=np.nan), aligned((n + 1, wide), fill=-7.5)
    a[:, : size * size] = x.reshape(n, -1)
    for thread in range(max(n_threads, 1)):
        step(
            "streams:sinkhorn",
            thread,
            max(n_threads, 1),
            x=a,
            x_stride=a.strides[0],
            size=size,
            rounds=rounds,
            eps=eps,
            out=out,
            out_stride=out.strides[0],
            split_tokens=int(n_threads > 0),
            control=ControlBlock(n),
        )
    assert np.all(out[n] == -7.5)
    return out[:n, : size * size].reshape(x.shape)


@pytest.mark.parametrize("rounds", [1, 2, 20])
@pytest.mark.parametrize("size", [1, 3, 4, 6])
def test_sinkhorn(size: int, rounds: int) -> None:
    x = np.random.default_rng(size).normal(0, 3, (11, size, size)).astype(np.float32)
    x[0] *= 40  # nearly all of a row in one place
    expected = functions.sinkhorn(x.astype(np.float64), rounds, 1e-6)
    for n_threads in (0, 1, 3):
        np.testing.assert_allclose(balanced(x, rounds, 1e-6, n_threads), expected, rtol=2e-5, atol=1e-9)


def test_rows_and_columns_come_to_one() -> None:
    x = np.random.default_rng(5).normal(0, 1, (4, 4, 4)).astype(np.float32)
    for found in (balanced(x, 40, 1e-6), functions.sinkhorn(x.astype(np.float64), 40, 1e-6)):
        np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-4)
        np.testing.assert_allclose(found.sum(axis=2), 1, rtol=1e-4)
    once = functions.sinkhorn(np.zeros((1, 2, 2)), 1, 0.5)  # rows of 1 + 1/2, columns divided by 2 + 1/2
    np.testing.assert_allclose(once, 0.4)
    rows = functions.sinkhorn(np.log([[[3.0, 1.0], [1.0, 1.0]]]), 1, 0.0)
    np.testing.assert_allclose(rows, [[[0.6, 1 / 3], [0.4, 2 / 3]]])  # softmax of rows, then columns


def test_a_matrix_with_nan_becomes_nan() -> None:
    x = np.zeros((2, 4, 4), np.float32)
    x[1, 2, 1] = np.nan
    found = balanced(x, 2, 1e-6)
    np.testing.assert_allclose(found[0], 0.25, rtol=1e-5)
    assert np.isnan(found[1]).all()


@pytest.mark.parametrize(("n_heads", "n"), [(4, 32), (3, 21), (1, 1)])
def test_root_products(n_heads: int, n: int) -> None:
    require(["streams:root_products"])
    rng, scale, least = np.random.default_rng(n), n**-0.5, 1e-3
    x, y = aligned((13, n_heads * n + 16), fill=np.nan), aligned((13, n_heads * n + 16), fill=np.nan)
    for values in (x, y):
        values[:, : n_heads * n] = rng.normal(0, 1, (13, n_heads * n))
    x[0, : n_heads * n] = 0
    x[1, : n_heads * n] *= 1e-9  # smaller than the least
    products = [v[:, : n_heads * n].astype(np.float64).reshape(13, n_heads, n) for v in (x, y)]
    p = scale * (products[0] * products[1]).sum(axis=2)
    expected = np.sign(p) * np.sqrt(np.maximum(np.abs(p), least))
    for n_threads in (0, 1, 3):
        out = aligned((14, 16), fill=-7.5)
        for thread in range(max(n_threads, 1)):
            step(
                "streams:root_products",
                thread,
                max(n_threads, 1),
                x=x,
                x_stride=x.strides[0],
                y=y,
                y_stride=y.strides[0],
                heads=n_heads,
                n=n,
                scale=scale,
                least=least,
                out=out,
                out_stride=out.strides[0],
                split_tokens=int(n_threads > 0),
                control=ControlBlock(13),
            )
        np.testing.assert_allclose(out[:13, :n_heads], expected, rtol=2e-5, atol=1e-5)
        assert np.all(out[13] == -7.5)
