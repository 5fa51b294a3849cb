"""RMS norm and layer norm against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.call import ControlBlock, aligned, require, step

from llmgen.backends.numpy.functions import layer_norm, rms_norm

WIDTHS = (1, 7, 15, 16, 17, 40, 64, 80, 100, 576, 1568)
KINDS = ("rms_norm", "layer_norm")


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    require([f"norms:{kind}" for kind in KINDS])


def padded(x: np.ndarray, fill: float = np.nan) -> np.ndarray:
    """x [n, width] as a program's buffer of whole vectors."""
    out = aligned((len(x), -(-x.shape[1] // 16) * 16), fill=fill)
    out[:, : x.shape[1]] = x
    return out


def norm(
    kind: str,
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None = None,
    *,
    n_heads: int = 1,
    eps: float = 1e-5,
    n_threads: int = 0,
    in_place: bool = False,
    heads: tuple[int, int] | None = None,
) -> np.ndarray:
    """x [n, n_heads * width]; weight [width] or [n_heads, width]; n_threads 0: one takes all tokens."""
    n, width = len(x), x.shape[1] // n_heads
    source = padded(x)
    out = source if in_place else padded(np.full_like(x, -7.5), -7.5)
    first, last = heads or (0, n_heads)
    for thread in range(max(n_threads, 1)):
        arguments: dict[str, Any] = {
            "x": source,
            "x_stride": source.strides[0],
            "out": out,
            "out_stride": out.strides[0],
            "weight": padded(weight.reshape(1, -1)),
            "weight_stride": 4 * width if weight.ndim == 2 else 0,
            "bias": 0 if bias is None else padded(bias.reshape(1, -1)),
            "n": width,
            "first": first,
            "last": last,
            "split_tokens": int(n_threads > 0),
            "control": ControlBlock(n),
            "eps": eps,
        }
        step(f"norms:{kind}", thread, max(n_threads, 1), **arguments)
    assert in_place or np.all(out[:, x.shape[1] :] == -7.5)
    return out[:, : x.shape[1]]


def twin(
    kind: str, x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, eps: float = 1e-5
) -> np.ndarray:
    x = x.astype(np.float64)
    return rms_norm(x, weight, eps) if kind == "rms_norm" else layer_norm(x, weight, bias, eps)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_whole_width(kind: str, width: int) -> None:
    rng = np.random.default_rng(1)
    x = (rng.normal(0, 1, (5, width)) * 10.0 ** rng.uniform(-3, 3, (5, 1))).astype(np.float32)
    weight, bias = rng.normal(1, 1, width).astype(np.float32), rng.normal(0, 1, width).astype(np.float32)
    for b in (None, bias) if kind == "layer_norm" else (None,):
        ours = norm(kind, x, weight, b)
        np.testing.assert_allclose(ours, twin(kind, x, weight, b), rtol=1e-5, atol=2e-5)
        np.testing.assert_array_equal(norm(kind, x, weight, b, in_place=True), ours)


@pytest.mark.parametrize("width", [16, 40, 80, 256])
@pytest.mark.parametrize("kind", KINDS)
def test_heads(kind: str, width: int) -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(0, 1, (3, 4 * width)).astype(np.float32)
    for weight in (rng.normal(1, 1, width), rng.normal(1, 1, (4, width))):
        weight = weight.astype(np.float32)
        ours = norm(kind, x, weight, n_heads=4)
        expected = twin(kind, x.reshape(3, 4, width), weight, None)
        np.testing.assert_allclose(ours.reshape(3, 4, width), expected, rtol=1e-5, atol=1e-5)
        some = norm(kind, x, weight, n_heads=4, heads=(1, 3))
        np.testing.assert_array_equal(some[:, width : 3 * width], ours[:, width : 3 * width])
        assert np.all(some[:, :width] == -7.5)
        assert np.all(some[:, 3 * width :] == -7.5)


@pytest.mark.parametrize("kind", KINDS)
def test_threads_share_out_tiles(kind: str) -> None:
    rng = np.random.default_rng(3)
    weight = rng.normal(1, 1, 40).astype(np.float32)
    for n in (1, 7, 8, 9, 41):
        x = rng.normal(0, 1, (n, 40)).astype(np.float32)
        alone = norm(kind, x, weight)
        for n_threads in (1, 2, 3, 5):
            np.testing.assert_array_equal(norm(kind, x, weight, n_threads=n_threads), alone)


@pytest.mark.parametrize("kind", KINDS)
def test_bad_values_stay_with_their_token(kind: str) -> None:
    rng = np.random.default_rng(4)
    weight = np.ones(40, dtype=np.float32)
    x = rng.normal(0, 1, (3, 40)).astype(np.float32)
    clean = norm(kind, x, weight)
    for value in (np.nan, np.inf, -np.inf):
        for place in (0, 15, 39):
            bad = x.copy()
            bad[1, place] = value
            ours = norm(kind, bad, weight)
            np.testing.assert_array_equal(ours[[0, 2]], clean[[0, 2]])
            assert np.isnan(ours[1, place])


@pytest.mark.parametrize("kind", KINDS)
def test_large_and_constant_rows(kind: str) -> None:
    weight = np.ones(80, dtype=np.float32)
    constant = np.full((1, 80), 1e4, dtype=np.float32)
    ours = norm(kind, constant, weight)
    np.testing.assert_allclose(ours, twin(kind, constant, weight, None), atol=2e-3)
    large = np.random.default_rng(5).normal(0, 1e17, (1, 80)).astype(np.float32)
    np.testing.assert_allclose(
        norm(kind, large, weight), twin(kind, large, weight, None), rtol=1e-4, atol=1e-4
    )
    zeros = np.zeros((1, 80), dtype=np.float32)
    assert not norm(kind, zeros, weight).any()
