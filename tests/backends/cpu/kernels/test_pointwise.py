"""Activation functions, sums, copies and soft caps against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.call import COUNT_TOKENS, GATES, POINTWISE, UNARY, ControlBlock, aligned, require, step

from llmgen.backends.numpy.functions import ACTIVATIONS, gelu, silu, soft_cap, swiglu_oai


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    require(POINTWISE)


def binary(kind: str, x: np.ndarray, y: np.ndarray, n_threads: int = 0) -> np.ndarray:
    """x [n, width] and y [n, width], or [width]; width a multiple of 16."""
    a, b, out = aligned(x.shape), aligned(y.shape), aligned((len(x) + 1, x.shape[1]), fill=-7.5)
    a[:], b[:] = x, y
    for thread in range(max(n_threads, 1)):
        arguments: dict[str, Any] = {
            "x": a,
            "x_stride": a.strides[0],
            "y": b,
            "y_stride": b.strides[0] if y.ndim == 2 else 0,
            "out": out,
            "out_stride": out.strides[0],
            "n": x.shape[1],
            "split_tokens": int(n_threads > 0),
            "control": ControlBlock(len(x)),
        }
        step(f"pointwise:{kind}", thread, max(n_threads, 1), **arguments)
    assert np.all(out[len(x)] == -7.5)
    return out[: len(x)]


def capped(x: np.ndarray, cap: float) -> np.ndarray:
    out = aligned(x.shape)
    out[:] = x
    step(
        "pointwise:softcap",
        x=out,
        x_stride=out.strides[0],
        n=x.shape[1],
        control=ControlBlock(len(x)),
        cap=cap,
        count=COUNT_TOKENS,
    )
    return out


def wide() -> np.ndarray:
    """Numbers of both signs over the whole of float32, with more of them where functions bend; [1, n]."""
    magnitudes = np.concatenate(
        [np.logspace(-45, 38.5, 2000), np.linspace(0, 20, 4000), np.linspace(80, 110, 1000)]
    )
    values = np.concatenate([magnitudes, -magnitudes]).astype(np.float32)
    return values[: len(values) // 16 * 16].reshape(1, -1)


def ones(x: np.ndarray) -> np.ndarray:
    return np.ones_like(x)


def test_silu() -> None:
    x = wide()
    ours = binary("silu_mul", x, ones(x))
    expected = silu(x.astype(np.float64))
    # where e^-x overflows, the exact result is smaller than 1e-36
    assert np.all(np.abs(ours - expected) <= 4e-7 * np.abs(expected) + 1e-36)


def test_gelu() -> None:
    x = wide()
    x = x[:, np.abs(x[0]) < 1e12]
    x = x[:, : x.shape[1] // 16 * 16]
    ours = binary("gelu_mul", x, ones(x))
    expected = gelu(x.astype(np.float64))
    # z itself is rounded, and counts in the exponent; the twin cancels below about -5.5
    allowed = (4e-7 + 4e-7 * np.minimum(np.abs(x), 8) ** 3) * np.abs(expected) + 1e-14
    assert np.all(np.abs(ours - expected) <= allowed)


@pytest.mark.parametrize("cap", [0.5, 30.0, 50.0])
def test_soft_cap(cap: float) -> None:
    x = wide()
    ours = capped(x, cap)
    expected = soft_cap(x.astype(np.float64), cap)
    assert np.all(np.abs(ours - expected) <= 3e-7 * cap)
    assert np.all(np.abs(ours) <= cap)


@pytest.mark.parametrize("kind", ["silu_mul", "gelu_mul"])
def test_ends_of_the_scale(kind: str) -> None:
    x = np.zeros((1, 16), dtype=np.float32)
    x[0, :7] = [np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 0.0, 1.0]
    ours = binary(kind, x, ones(x))[0]
    assert np.isnan(ours[0])
    assert ours[1] == np.inf
    assert np.isnan(ours[2])  # -inf times 0
    assert ours[3] == x[0, 3]
    assert ours[4] == 0
    assert ours[5] == 0
    assert 0 < ours[6] < 1
    y = np.full_like(x, np.nan)
    assert np.isnan(binary(kind, ones(x), y)).all()


def test_soft_cap_keeps_nan_and_bounds_infinity() -> None:
    x = np.zeros((1, 16), dtype=np.float32)
    x[0, :3] = [np.nan, np.inf, -np.inf]
    ours = capped(x, 30.0)[0]
    assert np.isnan(ours[0])
    np.testing.assert_allclose(ours[1:4], [30, -30, 0], rtol=1e-6)


@pytest.mark.parametrize("width", [16, 48, 576])
def test_add(width: int) -> None:
    rng = np.random.default_rng(1)
    x, y = (rng.normal(0, 1, (9, width)).astype(np.float32) for _ in range(2))
    np.testing.assert_array_equal(binary("add", x, y), x + y)
    np.testing.assert_array_equal(binary("add", x, y[0]), x + y[0])
    for n_threads in (1, 2, 3, 5):
        np.testing.assert_array_equal(binary("add", x, y, n_threads), x + y)


@pytest.mark.parametrize("kind", GATES)
def test_gates_multiply(kind: str) -> None:
    rng = np.random.default_rng(2)
    x, y = (rng.normal(0, 3, (17, 80)).astype(np.float32) for _ in range(2))
    ours, wide = binary(kind, x, y), x.astype(np.float64)
    name = kind.removesuffix("_mul")
    expected = swiglu_oai(wide, y) if name == "swiglu_oai" else ACTIVATIONS[name](wide) * y
    atol = 2e-6 if kind == "gelu_erf_mul" else 1e-9
    np.testing.assert_allclose(ours, expected, rtol=2e-5, atol=atol)
    for n_threads in (2, 3):
        np.testing.assert_array_equal(binary(kind, x, y, n_threads), ours)


@pytest.mark.parametrize("n", [1, 5, 16, 17, 40, 100])
def test_copy_is_exact_and_no_longer_than_asked(n: int) -> None:
    x = aligned((3, 112))
    x[:] = np.random.default_rng(3).normal(0, 1, x.shape)
    out = aligned((3, 128), fill=-7.5)
    step(
        "pointwise:copy",
        x=x,
        x_stride=x.strides[0],
        out=out,
        out_stride=out.strides[0],
        n=n,
        control=ControlBlock(3),
    )
    np.testing.assert_array_equal(out[:, :n], x[:, :n])
    assert np.all(out[:, n:] == -7.5)


def test_one_row_is_added_to_all() -> None:
    rng = np.random.default_rng(4)
    x, y = aligned((4, 48)), aligned(48)
    x[:], y[:] = rng.normal(0, 1, x.shape), rng.normal(0, 1, 48)
    expected = x + y
    expected[3] = x[3]
    step(
        "pointwise:add_row",
        x=x,
        x_stride=x.strides[0],
        y=y,
        n=48,
        control=ControlBlock(3),
        count=COUNT_TOKENS,
    )
    np.testing.assert_array_equal(x, expected)


def unary(kind: str, x: np.ndarray, **parameter: float) -> np.ndarray:
    a, out = aligned(x.shape), aligned((len(x) + 1, x.shape[1]), fill=-7.5)
    a[:] = x
    step(
        f"pointwise:{kind}",
        x=a,
        x_stride=a.strides[0],
        out=out,
        out_stride=out.strides[0],
        n=x.shape[1],
        split_tokens=0,
        control=ControlBlock(len(x)),
        **parameter,
    )
    assert np.all(out[len(x)] == -7.5)
    return out[: len(x)]


@pytest.mark.parametrize("kind", UNARY)
def test_activations(kind: str) -> None:
    x = np.linspace(-12, 12, 48 * 40, dtype=np.float32).reshape(40, 48)
    # what is wrong with the approximation of erf shows where gelu is nearly 0
    atol = {"gelu_erf": 1e-6, "tanh": 2e-7}.get(kind, 1e-9)
    np.testing.assert_allclose(unary(kind, x), ACTIVATIONS[kind](x.astype(np.float64)), rtol=2e-5, atol=atol)
    ends = np.zeros((1, 16), np.float32)
    ends[0, :3] = [np.nan, 1e30, -1e30]
    ours = unary(kind, ends)[0]
    assert np.isnan(ours[0])
    expected = {"sigmoid": 1.0, "relu_squared": np.inf, "exp": np.inf, "tanh": 1.0}.get(
        kind, np.float32(1e30)
    )
    assert ours[1] == expected
    assert abs(ours[2] + (kind == "tanh")) < 1e-30


def test_products_scales_and_clamps() -> None:
    rng = np.random.default_rng(5)
    x, y = (rng.normal(0, 1, (9, 48)).astype(np.float32) for _ in range(2))
    np.testing.assert_array_equal(binary("mul", x, y), x * y)
    np.testing.assert_array_equal(binary("mul", x, y[0]), x * y[0])
    np.testing.assert_array_equal(unary("scale", x, parameter=0.3), x * np.float32(0.3))
    x[0, :3] = [np.nan, np.inf, -np.inf]
    np.testing.assert_array_equal(unary("clamp", x, parameter=0.5), np.clip(x, -0.5, 0.5))
    np.testing.assert_array_equal(unary("at_most", x, parameter=-0.5), np.minimum(x, -0.5))


@pytest.mark.parametrize("kind", ["sigmoid", "softplus"])
@pytest.mark.parametrize("head_dim", [5, 16, 40])
def test_a_gate_for_each_head(head_dim: int, kind: str) -> None:
    rng = np.random.default_rng(6)
    n, heads = 11, 3
    x, gate = aligned((n, heads * head_dim)), aligned((n, 16))
    x[:], gate[:] = rng.normal(0, 1, x.shape), rng.normal(0, 2, gate.shape)
    expected = x.reshape(n, heads, head_dim) * ACTIVATIONS[kind](gate[:, :heads, None])
    out = aligned(x.shape, fill=np.nan)
    for first, last in ((0, 2), (2, 3)):
        step(
            "pointwise:gate_heads" if kind == "sigmoid" else "pointwise:gate_heads_softplus",
            x=x,
            x_stride=x.strides[0],
            gate=gate,
            gate_stride=gate.strides[0],
            out=out,
            out_stride=out.strides[0],
            first=first,
            last=last,
            head_dim=head_dim,
            split_tokens=0,
            control=ControlBlock(n),
        )
    np.testing.assert_allclose(out, expected.reshape(n, -1), rtol=1e-6)


def test_softplus_is_exact_where_it_is_small_and_where_it_bends() -> None:
    x = wide()
    x = x[:, (np.abs(x[0]) < 87)]
    x = x[:, : x.shape[1] // 16 * 16]
    expected = ACTIVATIONS["softplus"](x.astype(np.float64))
    np.testing.assert_allclose(unary("softplus", x), expected, rtol=3e-7)


@pytest.mark.parametrize(
    ("n_heads", "head_dim", "start", "n"), [(1, 40, 3, 17), (3, 32, 16, 16), (5, 7, 2, 5)]
)
def test_parts_of_heads(n_heads: int, head_dim: int, start: int, n: int) -> None:
    x, out = aligned((4, 112)), aligned((4, 112), fill=-7.5)
    x[:] = np.random.default_rng(5).normal(0, 1, x.shape)
    for thread in range(2):  # heads shared out, as among the threads of generated tokens
        first, last = n_heads * thread // 2, n_heads * (thread + 1) // 2
        rows = {"x": x, "x_stride": x.strides[0], "out": out, "out_stride": out.strides[0]}
        heads = {"first": first, "last": last, "head_dim": head_dim, "start": start, "n": n}
        step("pointwise:head_part", **rows, **heads, control=ControlBlock(3))
    parts = x[:3, : n_heads * head_dim].reshape(3, n_heads, head_dim)[:, :, start : start + n]
    np.testing.assert_array_equal(out[:3, : n_heads * n], parts.reshape(3, -1))
    assert np.all(out[:3, n_heads * n :] == -7.5)
    assert np.all(out[3] == -7.5)
