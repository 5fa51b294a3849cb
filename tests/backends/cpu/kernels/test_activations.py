"""The activation formats: int8 with a scale per 32 values, laid out for each kind of kernel."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.call import COUNT_OUTPUTS, COUNT_TOKENS, ControlBlock, aligned, levels, require, step
from kernels.matrices import activations, encoded, quantized, ranges, tiled

from llmgen.backends.cpu.kernels.layout import (
    ACTIVATION_FORMATS,
    TILE_BLOCK,
    TILE_D,
    TILE_E,
    TILE_E0,
    TILE_E1,
    TILE_NEG,
    TILE_TOKENS,
)

SIZES = (32, 64, 96, 128, 160, 256, 288, 576)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    require([*(f"activations:{kind}" for kind in ACTIVATION_FORMATS), "activations:tiles"])


def scaled(
    x: np.ndarray, n_blocks: int, largest: int = 127
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """q [n, n_blocks, 32], d [n, n_blocks], d times the sums of halves [n, n_blocks, 2] and wholes."""
    n, real = len(x), x.shape[1] // 32
    q, d = np.zeros((n, n_blocks, 32), np.int32), np.zeros((n, n_blocks), np.float32)
    q[:, :real], d[:, :real] = quantized(x, largest)
    halves = q.reshape(n, n_blocks, 2, 16).sum(axis=3)
    return q, d, d[..., None] * halves.astype(np.float32), d * halves.sum(axis=2).astype(np.float32)


def int8_twin(x: np.ndarray) -> np.ndarray:
    """The format "int8", uint8 [n, steps, bytes]."""
    q, d, _, e = scaled(x, x.shape[1] // 32)
    scales = np.ascontiguousarray(np.stack([d, e], axis=-1)).view(np.uint8)
    return np.concatenate([q.astype(np.int8).view(np.uint8), scales], axis=2)


def int16_twin(x: np.ndarray) -> np.ndarray:
    """The format "int16", uint8 [n, steps, bytes]."""
    q, d, _, _ = scaled(x, x.shape[1] // 32, 32767)
    parted = q.astype(np.int16).reshape(*d.shape, 2, 8, 2).swapaxes(-1, -2)
    shorts = np.ascontiguousarray(parted).reshape(*d.shape, 32).view(np.uint8)
    return np.concatenate([shorts, d[..., None].view(np.uint8)], axis=2)


def int8_super_twin(x: np.ndarray) -> np.ndarray:
    """The format "int8_super", uint8 [n, steps, bytes]."""
    n, steps = len(x), -(-x.shape[1] // 256)
    q, d, e_halves, e = scaled(x, 8 * steps)
    interleaved = np.stack([d.reshape(n, steps, 2, 4), e.reshape(n, steps, 2, 4)], axis=3)
    parts = [
        q.astype(np.int8).reshape(n, steps, 256).view(np.uint8),
        interleaved.reshape(n, steps, 16).view(np.uint8),
        np.repeat(d, 2, axis=1).reshape(n, steps, 16).view(np.uint8),
        np.ascontiguousarray(e_halves).reshape(n, steps, 16).view(np.uint8),
    ]
    return np.concatenate(parts, axis=2)


def same_numbers(ours: np.ndarray, twin: np.ndarray) -> None:
    """Byte by byte, except that 0 may have either sign."""
    n = len(twin)
    a = np.ascontiguousarray(ours).view(np.uint32).reshape(n, -1).copy()
    b = np.ascontiguousarray(twin).view(np.uint32).reshape(n, -1).copy()
    for words in (a, b):
        words[words == 0x80000000] = 0
    np.testing.assert_array_equal(a, b)


TWINS = {"int8": int8_twin, "int16": int16_twin, "int8_super": int8_super_twin}
assert set(TWINS) | {"float32"} == set(ACTIVATION_FORMATS)


def written(kind: str, ours: np.ndarray, twin: np.ndarray) -> np.ndarray:
    """The part of each step's bytes that means something, after which it may be padded."""
    return ours.reshape(len(ours), -1, ACTIVATION_FORMATS[kind].nbytes)[:, :, : twin.shape[2]]


@pytest.mark.parametrize("n_cols", SIZES)
@pytest.mark.parametrize("kind", TWINS)
def test_formats(kind: str, n_cols: int) -> None:
    x = activations(3, n_cols, np.random.default_rng(1))
    twin = TWINS[kind](x)
    same_numbers(written(kind, encoded(kind, x), twin), twin)


@pytest.mark.parametrize("n_cols", [1, 7, 15, 16, 17, 33, 63, 64, 65, 100, 576])
def test_float(n_cols: int) -> None:
    x = activations(3, n_cols, np.random.default_rng(3))
    ours = encoded("float32", x).view(np.float32)
    np.testing.assert_array_equal(ours[:, :n_cols], x)
    assert not ours[:, n_cols:].any()


PLAIN = next(level for level in levels() if level != "amx")
"""A level whose tiles lie one behind the other; test_levels.py holds the others against it."""


@pytest.mark.parametrize("n_cols", [32, 64, 160])
@pytest.mark.parametrize("n", [1, 7, 8, 9, 24])
def test_tiles(n: int, n_cols: int) -> None:
    x = activations(n, n_cols, np.random.default_rng(4))
    tiles, blocks = -(-n // TILE_TOKENS), n_cols // 32
    ours = tiled(x, PLAIN)[:tiles]
    q, d, e_halves, e = scaled(x, blocks)

    def by_token(first: int, nbytes: int, dtype: str) -> np.ndarray:
        part = np.ascontiguousarray(ours[:, :, first : first + nbytes]).view(dtype)
        return part.reshape(tiles, blocks, TILE_TOKENS).transpose(0, 2, 1).reshape(-1, blocks)[:n]

    groups = ours[:, :, :256].reshape(tiles, blocks, 8, TILE_TOKENS, 4).view(np.int8)
    ints = groups.transpose(0, 3, 1, 2, 4).reshape(tiles * TILE_TOKENS, blocks, 32)[:n]
    np.testing.assert_array_equal(ints, q)
    np.testing.assert_array_equal(by_token(TILE_D, 32, "f4"), d)
    np.testing.assert_array_equal(by_token(TILE_E, 32, "f4"), e)
    np.testing.assert_array_equal(by_token(TILE_E0, 32, "f4"), e_halves[..., 0])
    np.testing.assert_array_equal(by_token(TILE_E1, 32, "f4"), e_halves[..., 1])
    np.testing.assert_array_equal(by_token(TILE_NEG, 32, "i4"), -q.astype(np.int32).sum(axis=2))
    assert TILE_NEG + 32 <= TILE_BLOCK


def test_tiles_are_shared_out() -> None:
    x = activations(40, 64, np.random.default_rng(5))
    for n_threads in (2, 3, 5, 7):
        np.testing.assert_array_equal(tiled(x, n_threads=n_threads), tiled(x))


def test_halves_are_rounded_to_even() -> None:
    """Each n + 1/2 of a block whose scale is 1, up to the largest."""
    x = np.zeros((8, 32), dtype=np.float32)
    x.ravel()[:] = np.arange(-128, 128) + 0.5
    x[:, 31] = np.where(np.abs(x).max(axis=1) > 127, x[:, 31], 127.0)
    x = np.clip(x, -127, 127)
    q = encoded("int8_super", x)[:, :32].view(np.int8)
    np.testing.assert_array_equal(q, np.rint(x).astype(np.int8))
    assert q[3, 30] == np.rint(x[3, 30])


@pytest.mark.parametrize("kind", TWINS)
def test_zero_blocks_have_no_scale(kind: str) -> None:
    x = np.zeros((2, ACTIVATION_FORMATS[kind].values), dtype=np.float32)
    x[1, -3] = -2.54
    twin = TWINS[kind](x)
    ours = written(kind, encoded(kind, x), twin)
    assert ours.any(axis=(1, 2)).tolist() == [False, True]
    same_numbers(ours, twin)


@pytest.mark.parametrize("kind", TWINS)
def test_blocks_are_shared_out(kind: str) -> None:
    """Threads that write ranges of blocks leave what one thread writes."""
    x = activations(2, 576, np.random.default_rng(6))
    whole, units = (
        encoded(kind, x),
        -(-576 // ACTIVATION_FORMATS[kind].values) * ACTIVATION_FORMATS[kind].values // 32,
    )
    for n_threads in (2, 3, 5):
        out = aligned(whole.shape, np.uint8, 0xAA)
        for first, last in ranges(units, n_threads):
            quantize(kind, x, out, 2, first=first, last=last)
        np.testing.assert_array_equal(out, whole)


def quantize(
    kind: str, x: np.ndarray, out: np.ndarray, n: int, first: int = 0, last: int = 0, **more: object
) -> None:
    source = aligned(x.shape)
    source[:] = x
    step(
        f"activations:{kind}",
        x=source,
        x_stride=source.strides[0],
        out=out,
        out_stride=out.strides[0],
        first=first,
        last=last,
        real=x.shape[1] // (1 if kind == "float32" else 32),
        **{"control": ControlBlock(n), "count": COUNT_TOKENS, **more},
    )


@pytest.mark.parametrize("kind", sorted(ACTIVATION_FORMATS))
def test_only_the_tokens_that_want_logits(kind: str) -> None:
    x = activations(7, 256, np.random.default_rng(7))
    whole = encoded(kind, x)
    rows = [6, 0, 3]
    last = 256 if kind == "float32" else 8
    out = aligned((4, whole.shape[1]), np.uint8, 0xAA)
    for thread in (0, 1):
        source = aligned(x.shape)
        source[:] = x
        step(
            f"activations:{kind}",
            thread,
            2,
            x=source,
            x_stride=source.strides[0],
            out=out,
            out_stride=out.strides[0],
            last=last,
            real=last,
            gather=1,
            split_tokens=1,
            control=ControlBlock(7, outputs=rows),
            count=COUNT_OUTPUTS,
        )
    np.testing.assert_array_equal(out[:3], whole[rows])
    assert np.all(out[3] == 0xAA)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", TWINS)
def test_bad_values_end_up_in_their_scale(kind: str, value: float) -> None:
    x = activations(2, 256, np.random.default_rng(9))
    clean = encoded(kind, x)
    x[1, 77] = value
    ours = encoded(kind, x)
    np.testing.assert_array_equal(ours[0], clean[0])
    at = {"int8": slice(32, 40), "int16": slice(64, 68), "int8_super": slice(256, 320)}[kind]
    steps = ours[1].reshape(-1, ACTIVATION_FORMATS[kind].nbytes)[:, at].copy().view(np.float32)
    others = clean[1].reshape(-1, ACTIVATION_FORMATS[kind].nbytes)[:, at].copy().view(np.float32)
    bad = ~np.isfinite(steps)
    assert 1 <= bad.sum() <= 2  # d and d times the sum
    np.testing.assert_array_equal(steps[~bad], others[~bad])
