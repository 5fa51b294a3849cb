"""Where memory ends, and where numbers do: last rows of a file, read-only pages, NaN and infinity."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from kernels.call import TABLE, Guarded, all_kernels, require
from kernels.matrices import (
    FLOATS,
    QUANTIZED,
    SCALES,
    Matrix,
    activations,
    embed,
    expected,
    matvec,
    panel,
    placed,
    put_scales,
    random_matrix,
    sizes,
)

from llmgen.backends.cpu.binding import Binding
from llmgen.gguf import GGMLType
from llmgen.model.weights import Matrix as WeightMatrix

KEYS = list(TABLE)
HALF_SCALES = [key for key in QUANTIZED if key not in ("mxfp4", "nvfp4")]  # whose scales are all finite
posix = pytest.mark.skipif(os.name != "posix", reason="needs mprotect")


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    require(all_kernels())


# --- the end of the file: over-reads would kill the process, so it is another one ---


def bound(m: Matrix, slack: int) -> tuple[Matrix, list[object]]:
    """The matrix at the end of readable memory, bound as a model binds a tensor; and what to keep alive."""
    end = Guarded(m.data.tobytes() + b"\xff" * slack)
    tensor = SimpleNamespace(
        name="w.weight",
        shape=(m.n_cols, m.n_rows),
        type=GGMLType[m.key.upper()],
        address=end.address,
        row_bytes=m.data.shape[1],
        data=m.data.ravel(),
        nbytes=m.data.nbytes,
        slack=slack,
    )
    binding = Binding(1)
    w = binding.matrix(WeightMatrix(tensor, m.n_rows, m.n_cols))
    return Matrix(m.key, m.data, m.n_cols, w.copied_row, w.copy_address, w.address), [end, binding]


def at_the_end(m: Matrix) -> None:
    """All kernels over read-only bytes with nothing, or just enough, behind them."""
    x = activations(9, m.n_cols, np.random.default_rng(1))
    for slack in (0, m.kernels.read_past - 1, m.kernels.read_past):
        there, alive = bound(m, slack)
        np.testing.assert_array_equal(matvec(there, x[:1]), matvec(m, x[:1]))
        np.testing.assert_array_equal(matvec(there, x), matvec(m, x))
        np.testing.assert_array_equal(panel(there, x), panel(m, x))
        np.testing.assert_array_equal(embed(there, [m.n_rows - 1]), embed(m, [m.n_rows - 1]))
        del alive


def check_every_end() -> None:
    rng = np.random.default_rng(2)
    for key in KEYS:
        for n_cols in sizes(key):
            for n_rows in (1, 3, 17):
                print(key, n_rows, n_cols, flush=True)
                at_the_end(random_matrix(key, n_rows, n_cols, rng))


@posix
def test_last_rows_before_the_end_of_a_file() -> None:
    code = "import faulthandler as f; f.enable()\nimport kernels.test_edges as t; t.check_every_end()"
    paths = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )
    last = done.stdout.splitlines()[-1:]
    assert done.returncode == 0, f"died at {last}: {done.stderr[-2000:]}"


# --- numbers that are none ---


def with_scale(m: Matrix, row: int, block: int, value: float, which: int) -> None:
    """Put ``value`` into a scale (or a weight) of one block."""
    if m.key in FLOATS:
        kind = {"f64": "<f8", "f32": "<f4", "f16": "<f2", "bf16": "<u2"}[m.key]
        bits = int(np.float32(value).view(np.uint32)) >> 16 if m.key == "bf16" else value
        m.data[row].view(kind)[block * 3 % m.n_cols] = bits
        return
    blocks = m.data[row].reshape(m.n_cols // m.kernels.block, -1)
    put_scales(m.key, blocks[block], np.float16(value), which)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("key", [*FLOATS, *HALF_SCALES])
def test_a_bad_scale_stays_in_its_row(key: str, value: float) -> None:
    rng = np.random.default_rng(3)
    for n_cols in sizes(key):
        for which in range(len(SCALES.get(key, (0,)))):
            m, x = random_matrix(key, 20, n_cols, rng), activations(9, n_cols, rng)
            clean = matvec(m, x), panel(m, x)
            n_blocks = n_cols // m.kernels.block
            for row, block in ((0, 0), (7, n_blocks - 1), (8, 0), (19, n_blocks // 2)):
                with_scale(m, row, block, value, which)
            bad = np.isin(np.arange(20), (0, 7, 8, 19))
            for out, before in zip((matvec(m, x), panel(m, x)), clean, strict=True):
                assert not np.isfinite(out[:, bad]).any()
                np.testing.assert_array_equal(out[:, ~bad], before[:, ~bad])
            # a matrix that ends where another begins, whose scales are all bad
            m = random_matrix(key, 5, n_cols, rng)
            np.testing.assert_array_equal(matvec(Matrix(key, m.data[:3], n_cols), x), matvec(m, x)[:, :3])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("key", KEYS)
def test_a_bad_activation_stays_in_its_column(key: str, value: float) -> None:
    rng = np.random.default_rng(4)
    for n_cols in sizes(key):
        m, x = random_matrix(key, 20, n_cols, rng), activations(19, n_cols, rng)
        clean = matvec(m, x), panel(m, x)
        bad = np.isin(np.arange(19), (0, 6, 9, 18))
        for column, place in zip(np.flatnonzero(bad), (0, n_cols - 1, n_cols // 2, 0), strict=True):
            x[column, place] = value
        for out, before in zip((matvec(m, x), panel(m, x)), clean, strict=True):
            assert not np.isfinite(out[bad]).any()
            np.testing.assert_array_equal(out[~bad], before[~bad])
        for column in np.flatnonzero(bad):
            assert not np.isfinite(matvec(m, x[column : column + 1])).any()


@pytest.mark.parametrize("key", HALF_SCALES)
def test_a_bad_scale_reaches_the_embedding(key: str) -> None:
    m = random_matrix(key, 4, sizes(key)[2], np.random.default_rng(5))
    before = embed(m, [0, 1, 2, 3])
    with_scale(m, 2, 0, np.nan, 0)
    after = embed(m, [0, 1, 2, 3])
    assert np.isnan(after[2, : m.kernels.block]).all()
    np.testing.assert_array_equal(after[[0, 1, 3]], before[[0, 1, 3]])


@pytest.mark.parametrize("key", KEYS)
def test_huge_and_tiny_activations(key: str) -> None:
    """Up to the ends of float32, where a reciprocal overflows or is lost."""
    rng = np.random.default_rng(6)
    n_cols = sizes(key)[2]
    m = random_matrix(key, 17, n_cols, rng)
    for size in (1e30, 1e-30, 3e-38, 1e-42):
        x = (rng.uniform(-1, 1, (9, n_cols)) * size).astype(np.float32)
        x[::2, : n_cols // 2] = 0
        exact = x.astype(np.float64) @ m.floats().astype(np.float64).T
        most = np.abs(x).max() * np.abs(m.floats()).max() * n_cols
        for out in (matvec(m, x), panel(m, x)):
            assert np.isfinite(out).all()
            if size > 1e-37:
                assert np.all(np.abs(out - exact) <= 0.02 * most)
            else:  # the scale itself may vanish
                assert np.all(np.abs(out - exact) <= 2 * most + 1e-44)


@pytest.mark.parametrize("key", HALF_SCALES)
def test_largest_half_precision_scales(key: str) -> None:
    rng = np.random.default_rng(7)
    m = random_matrix(key, 17, sizes(key)[2], rng)
    for row in range(17):
        for block in range(m.n_cols // m.kernels.block):
            with_scale(m, row, block, 65504.0 if row % 2 else 6e-8, 0)
    x = activations(9, m.n_cols, rng)
    for kernel in (matvec, panel):
        exact, allowed = expected(m, x, prompt=kernel is panel)
        assert np.all(np.abs(kernel(m, x) - exact) <= allowed)


def test_subnormal_halves_are_not_flushed() -> None:
    values = np.arange(64, dtype="<u2")[None]  # the smallest halves there are
    m = placed("f16", values.view(np.uint8), 64)
    np.testing.assert_array_equal(embed(m, [0])[0], values.view("<f2")[0].astype(np.float32))
