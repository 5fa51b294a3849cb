"""Convolutions, linear attention and Mamba's scan against numpy: odd sizes, threads, several sequences in a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from kernels.call import RECURRENT, ControlBlock, aligned, lower_float_levels, require, step

from llmgen.backends.numpy import functions

LENGTHS = (5, 1, 7)  # tokens of three sequences in a run
OWNER = np.repeat(np.arange(3), LENGTHS)
N = len(OWNER)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    for level in (None, *lower_float_levels()):
        require(RECURRENT, level)


def padded(values: np.ndarray) -> np.ndarray:
    """Rows in room for whole vectors, with NaN behind them."""
    out = aligned((*values.shape[:-1], -(-values.shape[-1] // 16) * 16), fill=np.nan)
    out[..., : values.shape[-1]] = values
    return out


def control_of(memories: np.ndarray, tokens: slice = slice(0, N)) -> ControlBlock:
    """A run of some of the N tokens; memories [3, ...] are those of the sequences."""
    addresses = memories.ctypes.data + OWNER[tokens] * memories.strides[0]
    return ControlBlock(len(addresses), sequences=addresses)


def rows(tokens: slice, **values: np.ndarray) -> dict[str, Any]:
    """Arguments for values by token: the rows of the run's tokens, and their strides."""
    found: dict[str, Any] = {name: value[tokens] for name, value in values.items()}
    return found | {f"{name}_stride": value.strides[0] for name, value in values.items()}


def shared_out(n: int, unit: int, n_threads: int) -> Iterator[dict[str, int]]:
    units = -(-n // unit)
    for thread in range(n_threads):
        first, last = (min(units * t // n_threads * unit, n) for t in (thread, thread + 1))
        yield {"first": first, "last": last}


def in_every_way(compute: Callable[..., np.ndarray]) -> np.ndarray:
    """The result of one run with one thread; others have the same bits: threads, cuts and kernel levels."""
    whole = compute((slice(0, N),), 1, None)
    for cuts in (
        (slice(0, 3), slice(3, 4), slice(4, 9), slice(9, N)),
        tuple(slice(i, i + 1) for i in range(N)),
    ):
        np.testing.assert_array_equal(compute(cuts, 2, None), whole)
    for level in (None, *lower_float_levels()):
        np.testing.assert_array_equal(compute((slice(0, N),), 3, level), whole)
    return whole


@pytest.mark.parametrize(("n", "taps"), [(16, 2), (48, 4), (70, 3), (5, 4)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_convolve(n: int, taps: int, with_bias: bool) -> None:
    rng = np.random.default_rng(n)
    x, w, bias = (rng.normal(0, 1, shape).astype(np.float32) for shape in ((N, n), (taps, n), (n,)))
    before = rng.normal(0, 1, (3, taps - 1, n)).astype(np.float32)
    w_room, bias_room = np.concatenate([w.reshape(-1), np.zeros(16, np.float32)]), padded(bias)
    ends = []

    def compute(cuts: Any, n_threads: int, level: str | None) -> np.ndarray:
        a, out, state = padded(x), padded(np.zeros((N, n))), padded(before)
        for tokens in cuts:
            for part in shared_out(n, 16, n_threads):
                step(
                    "recurrent:convolve",
                    level=level,
                    **rows(tokens, x=a, out=out),
                    **part,
                    weight=w_room,
                    weight_row=4 * n,
                    bias=bias_room if with_bias else 0,
                    taps=taps,
                    state_row=state.strides[1],
                    control=control_of(state, tokens),
                )
        ends.append(state[..., :n])
        return out[:, :n]

    ours = in_every_way(compute)
    for i in range(3):
        expected, after = functions.convolution(
            *(v.astype(np.float64) for v in (x[i == OWNER], w, before[i]))
        )
        np.testing.assert_allclose(
            ours[i == OWNER], expected + (bias if with_bias else 0), rtol=1e-5, atol=1e-5
        )
        for end in ends:
            np.testing.assert_array_equal(end[i], after.astype(np.float32))


def in_blocks(state: np.ndarray) -> np.ndarray:
    """[..., heads, key_dim, value_dim] as the kernel keeps it: [..., heads, blocks of 16 columns, key_dim, 16]."""
    room = padded(state)
    split = room.reshape(*room.shape[:-1], -1, 16)
    out = aligned((*split.shape[:-3], split.shape[-2], split.shape[-3], 16))
    out[:] = np.swapaxes(split, -2, -3)
    return out


@pytest.mark.parametrize(
    ("n_heads", "n_keys", "key_dim", "value_dim", "tiled"),
    [
        (4, 2, 16, 16, False),
        (6, 3, 10, 32, True),
        (3, 1, 7, 20, False),
        (2, 2, 128, 64, True),
        (1, 1, 4, 3, False),
    ],
)
@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("kind", ["by head", "by row", "constant, no write"])
def test_linear_attend(
    n_heads: int, n_keys: int, key_dim: int, value_dim: int, tiled: bool, delta: bool, kind: str
) -> None:
    rng = np.random.default_rng(key_dim + value_dim)
    width = key_dim if kind == "by row" else 1
    q, k = (rng.normal(0, key_dim**-0.5, (N, n_keys, key_dim)).astype(np.float32) for _ in range(2))
    v = rng.normal(0, 1, (N, n_heads, value_dim)).astype(np.float32)
    decay = rng.uniform(0.5, 1, (N, n_heads, width)).astype(np.float32)
    write = rng.uniform(0, 1, (N, n_heads)).astype(np.float32)
    skip = rng.normal(0, 1, n_heads).astype(np.float32)
    before = rng.normal(0, 1, (3, n_heads, key_dim, value_dim)).astype(np.float32)
    constant = kind == "constant, no write"
    if constant:
        decay[:], write[:] = decay[0], 1

    def compute(cuts: Any, n_threads: int, level: str | None) -> np.ndarray:
        values = {
            name: padded(a.reshape(N, -1)) for name, a in {"q": q, "k": k, "v": v, "decay": decay}.items()
        }
        out, state, b = padded(np.zeros((N, v[0].size))), in_blocks(before), padded(write)
        for tokens in cuts:
            arguments = rows(tokens, **values, out=out, write=b)
            if constant:
                arguments |= {"decay_stride": 0, "write": 0}
            for part in shared_out(n_heads, 1, n_threads):
                step(
                    "recurrent:delta_rule" if delta else "recurrent:linear_attend",
                    level=level,
                    **arguments,
                    **part,
                    decay_width=width,
                    decay_step=4 if width > 1 else 0,
                    skip=0 if constant else padded(skip),
                    key_dim=key_dim,
                    value_dim=value_dim,
                    n_keys=n_keys,
                    group=n_heads // n_keys,
                    tiled=int(tiled),
                    scratch=aligned(16),
                    control=control_of(state, tokens),
                )
        assert np.isnan(out[:, v[0].size :]).all()
        return out[:, : v[0].size].reshape(v.shape)

    ours = in_every_way(compute)
    own = [h % n_keys if tiled else h // (n_heads // n_keys) for h in range(n_heads)]
    for i in range(3):
        mine = (a[i == OWNER].astype(np.float64) for a in (q[:, own], k[:, own], v, decay, write))
        expected, _ = functions.linear_attention(*mine, before[i].astype(np.float64), delta)
        if not constant:
            expected = expected + skip[:, None] * v[i == OWNER]
        np.testing.assert_allclose(ours[i == OWNER], expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("n", "size"), [(16, 16), (48, 5), (40, 128)])
def test_selective_scan(n: int, size: int) -> None:
    rng = np.random.default_rng(n)
    x, b, c = (rng.normal(0, 1, shape).astype(np.float32) for shape in ((N, n), (N, size), (N, size)))
    dt, a = rng.uniform(0, 1, (N, n)).astype(np.float32), -rng.uniform(0, 4, (size, n)).astype(np.float32)
    skip, before = rng.normal(0, 1, n).astype(np.float32), rng.normal(0, 1, (3, size, n)).astype(np.float32)
    a_room = np.concatenate([a.reshape(-1), np.zeros(16, np.float32)])

    def compute(cuts: Any, n_threads: int, level: str | None) -> np.ndarray:
        values = {name: padded(v) for name, v in {"x": x, "step": dt, "b": b, "c": c}.items()}
        out, state = padded(np.zeros((N, n))), padded(before)
        for tokens in cuts:
            for part in shared_out(n, 16, n_threads):
                step(
                    "recurrent:selective_scan",
                    level=level,
                    **rows(tokens, **values, out=out),
                    **part,
                    a=a_room,
                    a_row=4 * n,
                    skip=padded(skip),
                    size=size,
                    state_row=state.strides[1],
                    control=control_of(state, tokens),
                )
        return out[:, :n]

    ours = in_every_way(compute)
    for i in range(3):
        mine = (
            v.astype(np.float64) for v in (x[i == OWNER], dt[i == OWNER], a, b[i == OWNER], c[i == OWNER])
        )
        expected, _ = functions.selective_scan(*mine, before[i].astype(np.float64))
        np.testing.assert_allclose(ours[i == OWNER], expected + skip * x[i == OWNER], rtol=2e-5, atol=2e-5)


def test_nan_stays_in_its_columns_and_behind_its_token() -> None:
    x, out = aligned((3, 32)), aligned((3, 32))
    x[1, 17] = np.nan
    state, weight = aligned((1, 1, 32)), aligned(2 * 32 + 16, fill=1)
    step(
        "recurrent:convolve",
        x=x,
        x_stride=128,
        out=out,
        out_stride=128,
        last=32,
        weight=weight,
        weight_row=128,
        taps=2,
        state_row=128,
        control=ControlBlock(3, sequences=[state.ctypes.data] * 3),
    )
    assert np.argwhere(np.isnan(out)).tolist() == [[1, 17], [2, 17]]
