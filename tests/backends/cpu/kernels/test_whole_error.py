"""Products against float activations: rounding these to integers costs no more than it costs llama.cpp."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.call import TABLE
from kernels.matrices import FLOATS, activations, matvec, panel, random_matrix

OF_256 = {
    *(
        "q2_k",
        "q3_k",
        "q4_k",
        "q5_k",
        "q6_k",
        "tq1_0",
        "tq2_0",
        "iq1_s",
        "iq1_m",
        "iq2_xxs",
        "iq2_xs",
        "iq2_s",
    ),
    *("iq3_xxs", "iq3_s", "iq4_xs"),
}
"""The types whose activations have one scale for 256 there; the other quantized ones, one for 32."""
KEYS = [key for key in TABLE if key != "f64"]  # which llama.cpp does not multiply by
N_ROWS, N_COLS, N_TOKENS = 64, 1024, 9


def theirs(key: str, x: np.ndarray) -> np.ndarray:
    """Activations as llama.cpp's products see them, float64.

    ``vec_dot_type`` of each type in ggml/src/ggml-cpu/ggml-cpu.c; quantize_row_q8_0_ref, q8_1_ref and q8_K_ref in
    ggml/src/ggml-quants.c.  The offsets of Q8_1, rounded once more there, are taken as exact.
    """
    if key in ("f32", "f16"):
        return x.astype(np.float32 if key == "f32" else np.float16).astype(np.float64)
    if key == "bf16":
        bits = x.view(np.uint32)
        return (
            ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000)
            .astype(np.uint32)
            .view(np.float32)
            .astype(np.float64)
        )
    blocks = x.reshape(len(x), -1, 256 if key in OF_256 else 32)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=2, keepdims=True), axis=2)
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(largest == 0, 0, np.float32(127) / np.abs(largest)).astype(np.float32)
    q = np.rint(blocks * inverse).astype(np.float64)
    d = np.abs(largest) / np.float32(127)
    d = d.astype(np.float32 if key in OF_256 else np.float16).astype(np.float64)
    return (q * d).reshape(x.shape)


def rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.square(values).mean()))


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("kind", ["normal", "of all sizes", "outliers"])
def test_no_further_from_float_activations_than_llama_cpp(key: str, kind: str) -> None:
    rng = np.random.default_rng(11)
    m = random_matrix(key, N_ROWS, N_COLS, rng)
    x = rng.standard_normal((N_TOKENS, N_COLS)).astype(np.float32)
    if kind == "of all sizes":
        x = activations(N_TOKENS, N_COLS, rng)
    if kind == "outliers":  # as in the residual streams of real models
        x[:, ::200] *= 60
    w = m.floats().astype(np.float64)
    exact, other = x.astype(np.float64) @ w.T, theirs(key, x) @ w.T
    # where both round alike, only their scale in half precision is another
    allowed = 1.01 * rms(other - exact) + (1e-6 * rms(exact) if key in FLOATS else 0)
    for kernel in (matvec, panel):
        assert rms(kernel(m, x) - exact) <= allowed, (kernel.__name__, rms(other - exact))
