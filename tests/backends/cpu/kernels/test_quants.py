"""Every quant type against numpy: matrix-vector, panel and embedding kernels."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.call import TABLE, all_kernels, require
from kernels.matrices import (
    QUANTIZED,
    Matrix,
    activations,
    embed,
    expected,
    largest_activation,
    matvec,
    panel,
    placed,
    quantized,
    quantized_matrix,
    random_matrix,
    scale_bytes,
    sizes,
)

from llmgen.backends.cpu.runtime.cpu import target
from shared import DATA

KEYS = list(TABLE)
QUANTIZABLE = "f32 f16 bf16 q4_0 q4_1 q5_0 q5_1 q8_0 tq1_0 tq2_0 mxfp4".split()  # by the gguf package
ROWS = (1, 3, 16, 17, 40, 100)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    require(all_kernels())


def check_both(m: Matrix, x: np.ndarray, relative: float = 3e-7) -> None:
    """The kernel for generated tokens, and the one for prompts."""
    for kernel in (matvec, panel):
        check(kernel(m, x), m, x, relative, kernel is panel)


def check(out: np.ndarray, m: Matrix, x: np.ndarray, relative: float = 3e-7, prompt: bool = False) -> None:
    exact, allowed = expected(m, x, relative, prompt)
    assert np.all(np.abs(out - exact) <= allowed), np.max(np.abs(out - exact) / allowed)


@pytest.mark.parametrize("key", KEYS)
def test_matrix_vector(key: str) -> None:
    rng = np.random.default_rng(1)
    for n_cols in sizes(key):
        for n_rows in ROWS:
            m = random_matrix(key, n_rows, n_cols, rng)
            for columns in (1, 2, 5):
                x = activations(columns, n_cols, rng)
                check(matvec(m, x), m, x)


@pytest.mark.parametrize("key", KEYS)
def test_panel(key: str) -> None:
    rng = np.random.default_rng(2)
    for n_cols in sizes(key):
        for n_rows, tokens in zip(ROWS, (1, 7, 8, 9, 16, 33), strict=True):
            m = random_matrix(key, n_rows, n_cols, rng)
            x = activations(tokens, n_cols, rng)
            check(panel(m, x), m, x, prompt=True)


@pytest.mark.parametrize("key", QUANTIZABLE)
def test_quantized_values(key: str) -> None:
    rng = np.random.default_rng(3)
    m, x = quantized_matrix(key, 40, 256, rng), activations(9, 256, rng)
    check_both(m, x)


@pytest.mark.parametrize("key", KEYS)
def test_embedding_rows(key: str) -> None:
    rng = np.random.default_rng(4)
    for n_cols in sizes(key):
        m = random_matrix(key, 50, n_cols, rng)
        w, ids = m.floats(), [49, 0, 3, 3, 48, 17, 1, 2, 30, 9]
        for scale in (1.0, 25.25):
            out = embed(m, ids, scale)
            # d q + m may be rounded once or twice
            largest = np.abs(w[ids]).max(axis=1, keepdims=True) * scale
            assert np.all(np.abs(out - w[ids] * np.float32(scale)) <= 4e-7 * largest)
            for n_threads in (1, 2, 3):
                np.testing.assert_array_equal(embed(m, ids, scale, n_threads), out)
        np.testing.assert_array_equal(embed(m, ids, scale, number="positions"), out)


def every_byte(key: str) -> Matrix:
    """A matrix whose blocks show each byte value in each place where bytes are weights."""
    n_cols = TABLE[key].block
    m = random_matrix(key, 256, n_cols, np.random.default_rng(5))
    scales = m.data.copy()
    for row in range(256):
        m.data[row] = row
    at = [*scale_bytes(key), *({"q4_k": range(4, 16), "q5_k": range(4, 16)}.get(key, ()))]
    m.data[:, at] = scales[:, at]
    return m


@pytest.mark.parametrize("key", QUANTIZED)
def test_every_pattern_of_bits(key: str) -> None:
    """One activation at a time, so that each weight is seen by itself: exact up to one rounding."""
    m = every_byte(key)
    w = m.floats()
    x = np.zeros((m.n_cols, m.n_cols), dtype=np.float32)
    np.fill_diagonal(x, 127.0)  # rounded to int8 this is 127 with scale 1
    largest = np.abs(w).max(axis=1)
    bound = 127 * 1e-6 * largest
    for out in (matvec(m, x), panel(m, x)):
        assert np.all(np.abs(out.T - 127 * w) <= bound[:, None])
    assert np.all(np.abs(embed(m, list(range(256))) - w) <= 4e-7 * largest[:, None])


@pytest.mark.parametrize("key", QUANTIZED)
@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0x81, 0xFF])
def test_extreme_weights_and_activations(key: str, byte: int) -> None:
    """Sums as large as they can be: 16-bit intermediate sums must not saturate."""
    m = random_matrix(key, 16, 2 * max(TABLE[key].block, 128), np.random.default_rng(6))
    keep = m.data.copy()
    m.data[:] = byte
    blocks, before = (a.reshape(16, m.n_cols // TABLE[key].block, -1) for a in (m.data, keep))
    at = scale_bytes(key)
    blocks[:, :, at] = before[:, :, at]
    for sign in (1.0, -1.0):
        x = np.full((9, m.n_cols), sign * 3.0, dtype=np.float32)
        x[1::2, ::2] *= -1
        check_both(m, x, relative=4e-6)  # scale and offset may cancel in all weights of a block


WITH_OFFSETS = ("q4_1", "q5_1", "q2_k", "q4_k", "q5_k")


@pytest.mark.parametrize("key", [key for key in QUANTIZED if key not in WITH_OFFSETS])
def test_nothing_is_left_of_a_large_activation_that_meets_zero(key: str) -> None:
    """Zero points are taken off exactly, so errors are small beside the terms w x themselves."""
    rng = np.random.default_rng(15)
    m = random_matrix(key, 100, 256, rng)
    x = rng.normal(0, 1, (3, 256)).astype(np.float32)
    x[:, 17] = 1e5
    q, d = quantized(x, largest_activation(m))
    terms = np.abs(q * d[..., None].astype(np.float64)).reshape(x.shape) @ np.abs(m.floats()).T
    exact, _ = expected(m, x)
    assert np.all(np.abs(matvec(m, x) - exact) <= 1e-6 * terms)


@pytest.mark.parametrize("key", KEYS)
def test_columns_do_not_depend_on_their_company(key: str) -> None:
    rng = np.random.default_rng(7)
    for n_cols in (sizes(key)[-1], sizes(key)[2]):
        m, x = random_matrix(key, 17, n_cols, rng), activations(19, n_cols, rng)
        alone = np.concatenate([matvec(m, x[i : i + 1]) for i in range(len(x))])
        for n in (2, 3, 4, 5, 6, 7, 8, 9, 16, 19):
            np.testing.assert_array_equal(matvec(m, x[:n]), alone[:n])
        single = np.concatenate([panel(m, x[i : i + 1]) for i in range(len(x))])
        for n in (2, 8, 9, 19):
            np.testing.assert_array_equal(panel(m, x[:n]), single[:n])


@pytest.mark.parametrize("key", KEYS)
def test_threads_do_not_change_a_bit(key: str) -> None:
    rng = np.random.default_rng(8)
    for n_rows in (1, 40, 100):
        m, x = random_matrix(key, n_rows, sizes(key)[-1], rng), activations(5, sizes(key)[-1], rng)
        rows, panels = matvec(m, x), panel(m, x)
        for n_threads in (2, 3, 5):
            np.testing.assert_array_equal(matvec(m, x, n_threads), rows)
            np.testing.assert_array_equal(panel(m, x, n_threads), panels)


@pytest.mark.parametrize("key", KEYS)
def test_a_row_does_not_depend_on_how_many_there_are(key: str) -> None:
    """Types whose rows are taken side by side read a long share as streams, and what is left over row by row."""
    rng = np.random.default_rng(12)
    row = random_matrix(key, 1, sizes(key)[2], rng)
    n_rows = 16 * (4096 // row.data.shape[1] + 2) + 5
    m, x = random_matrix(key, n_rows, row.n_cols, rng), activations(3, row.n_cols, rng)
    few = [Matrix(key, m.data[i : i + 7], m.n_cols) for i in range(0, n_rows, 7)]
    for level in {None, "avx2"} if key in ("q4_0", "q8_0") and target().is_x86 else {None}:
        alone = np.concatenate([matvec(part, x, level=level) for part in few], axis=1)
        for columns in (1, 3):
            np.testing.assert_array_equal(matvec(m, x[:columns], level=level), alone[:columns])


@pytest.mark.parametrize("key", KEYS)
def test_panel_adds_to_what_is_there(key: str) -> None:
    rng = np.random.default_rng(9)
    n_cols = sizes(key)[-1]
    m, x = random_matrix(key, 17, n_cols, rng), activations(9, n_cols, rng)
    before = rng.normal(0, 1, (9, 17)).astype(np.float32)
    np.testing.assert_array_equal(panel(m, x, add=before), panel(m, x) + before)


@pytest.mark.parametrize("key", KEYS)
def test_a_part_of_the_rows(key: str) -> None:
    """Rows in the middle of a matrix as a matrix of their own, as fused tensors need."""
    rng = np.random.default_rng(10)
    n_cols = sizes(key)[2]
    m, x = random_matrix(key, 50, n_cols, rng), activations(3, n_cols, rng)
    part = Matrix(key, m.data[7:31], n_cols)
    np.testing.assert_array_equal(matvec(part, x), matvec(m, x)[:, 7:31])
    np.testing.assert_array_equal(panel(part, x), panel(m, x)[:, 7:31])


@pytest.mark.parametrize("key", KEYS)
def test_zeros(key: str) -> None:
    rng = np.random.default_rng(11)
    n_cols = sizes(key)[2]
    m = random_matrix(key, 17, n_cols, rng)
    nothing = np.zeros((3, n_cols), dtype=np.float32)
    assert not matvec(m, nothing).any()
    assert not panel(m, nothing).any()
    empty = placed(key, np.zeros_like(m.data), n_cols)
    x = activations(3, n_cols, rng)
    assert not matvec(empty, x).any()
    assert not panel(empty, x).any()
    assert not embed(empty, [0, 16]).any()


@pytest.mark.parametrize("key", QUANTIZED)
def test_weights_are_exact(key: str) -> None:
    """All bits of every weight, over so many random blocks that each index of each codebook comes up."""
    block = TABLE[key].block
    m = random_matrix(key, 64, 64 * block, np.random.default_rng(12))
    np.testing.assert_array_equal(embed(m, list(range(64))).view(np.uint32), m.floats().view(np.uint32))


@pytest.mark.parametrize(("key", "n_scales"), [("mxfp4", 1), ("nvfp4", 4)])
def test_every_scale_of_eight_bits(key: str, n_scales: int) -> None:
    """In a whole step of NVFP4, which reads the scales of four blocks at once, and in the blocks after it."""
    m = random_matrix(key, 256, 6 * TABLE[key].block, np.random.default_rng(13))
    m.data.reshape(256, 6, -1)[..., :n_scales] = np.arange(256)[:, None, None]
    np.testing.assert_array_equal(embed(m, list(range(256))).view(np.uint32), m.floats().view(np.uint32))
    x = activations(3, m.n_cols, np.random.default_rng(14))
    usual = Matrix(key, m.data[40:230], m.n_cols)  # where neither weights nor products leave float32's range
    check_both(usual, x)


def test_recorded_blocks() -> None:
    """Blocks that ggml made, and the values that it reads from them."""
    with np.load(DATA / "quants.npz") as recorded:
        names = [name.removesuffix(".blocks") for name in recorded.files if name.endswith(".blocks")]
        for name in names:
            values = recorded[f"{name}.values"]
            out = embed(placed(name.lower(), recorded[f"{name}.blocks"], values.shape[1]), [1, 0])
            np.testing.assert_array_equal(out.view(np.uint32), values[[1, 0]].view(np.uint32), name)
    assert {*KEYS} - {"f32", "f64"} == {name.lower() for name in names}


@pytest.mark.parametrize("key", KEYS)
def test_blocking_for_the_caches_changes_no_bit(key: str) -> None:
    """A sum that waits in memory for the next columns goes on as if it had stayed in a register."""
    rng = np.random.default_rng(12)
    m, x = random_matrix(key, 75, 1024, rng), activations(21, 1024, rng)
    before = rng.normal(0, 1, (21, 75)).astype(np.float32)
    blocks = m.n_cols // m.kernels.block
    expected = panel(m, x, add=before, chunk=blocks, together=1)
    for chunk in (1, 3, blocks):
        for together in (1, 2, 4, 9):
            for n_threads in (1, 2):
                ours = panel(m, x, n_threads, add=before, chunk=chunk, together=together)
                np.testing.assert_array_equal(ours, expected)
