"""x @ w, where the rows of w are what is summed up, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.call import ControlBlock, aligned, lower_float_levels, require, step
from kernels.matrices import Matrix, random_matrix, ranges, sizes

KEYS = ("f32", "f16", "bf16", "q8_0", "q4_0", "q5_1", "q4_k", "q6_k", "iq4_xs")


def turned(m: Matrix, x: np.ndarray, n_threads: int = 1, level: str | None = None) -> np.ndarray:
    """x [n, n_rows] -> float32 [n, n_cols]; nothing else may be written."""
    block = m.kernels.block
    out = aligned((len(x), m.n_cols + 16), fill=-7.5)
    source = aligned(x.shape)
    source[:] = x
    for thread, (first, last) in enumerate(ranges(m.n_cols // block, n_threads)):
        step(
            m.kernels.turned,
            thread,
            n_threads,
            level,
            weights=m.data,
            row_bytes=m.data.shape[1],
            rows=m.n_rows,
            first=first,
            last=last,
            block=block,
            x=source,
            x_stride=source.strides[0],
            out=out,
            out_stride=out.strides[0],
            scratch=aligned((m.n_rows + 1) * (m.n_cols + 16), np.float32, np.nan),
            control=ControlBlock(len(x)),
        )
    assert np.all(out[:, m.n_cols :] == -7.5)
    return out[:, : m.n_cols]


@pytest.mark.parametrize("key", KEYS)
def test_every_size_and_number_of_threads(key: str) -> None:
    rng = np.random.default_rng(1)
    for n_cols in sizes(key)[:5]:
        for n_rows in (1, 24, 65):
            m = random_matrix(key, n_rows, n_cols, rng)
            x = rng.normal(0, 1, (9, n_rows)).astype(np.float32)
            ours, weights = turned(m, x), m.floats().astype(np.float64)
            np.testing.assert_array_less(
                np.abs(ours - x @ weights), 1e-6 * np.abs(x) @ np.abs(weights) + 1e-30
            )
            for n_threads in (2, 3, 8):
                np.testing.assert_array_equal(turned(m, x, n_threads), ours)
            np.testing.assert_array_equal(turned(m, x[4:5]), ours[4:5])


@pytest.mark.parametrize("level", lower_float_levels())
def test_lower_levels(level: str) -> None:
    rng = np.random.default_rng(2)
    for key in ("f32", "q8_0", "q4_k"):
        m = random_matrix(key, 20, 256, rng)
        x = rng.normal(0, 1, (3, 20)).astype(np.float32)
        require([m.kernels.turned], level)
        np.testing.assert_array_equal(turned(m, x, level=level), turned(m, x))


def test_nan_stays() -> None:
    m = random_matrix("f32", 8, 40, np.random.default_rng(3))
    x = np.ones((2, 8), np.float32)
    x[1, 3] = np.nan
    ours = turned(m, x)
    assert np.isfinite(ours[0]).all()
    assert np.isnan(ours[1]).all()
