"""The quantizers: their error on many kinds of weights, the same bytes at all levels, odd blocks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from kernels.call import Guarded, levels, require
from kernels.matrices import random_matrix

from llmgen.backends.cpu.kernels.quantizers import QUANTIZERS, SCRATCH, quantizer
from llmgen.backends.cpu.kernels.quants import TABLE
from llmgen.gguf import GGMLType
from llmgen.gguf.dequantize import dequantize

KEYS = list(QUANTIZERS)
N = 1 << 15

KINDS: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "normal": lambda rng: rng.standard_normal(N),
    "heavy tails": lambda rng: rng.standard_t(4, N) * 0.02,
    "uniform": lambda rng: rng.uniform(-1, 1, N),
    "shifted": lambda rng: rng.standard_normal(N) + 1,
    "positive": lambda rng: rng.exponential(size=N),
    "sparse": lambda rng: rng.standard_normal(N) * (rng.random(N) < 0.1),
    "rows of their own size": lambda rng: (
        rng.standard_normal(N) * np.repeat(rng.lognormal(0, 2, N // 64), 64)
    ),
}

# What llama.cpp's quantizers (ggml_quantize_chunk without an importance matrix, llama-cpp-python 0.3.36)
# reach on the same weights: rms of the error, relative to that of the weights.
THEIRS = {
    "q2_k": (0.29695, 0.34720, 0.23273, 0.20247, 0.22669, 0.44538, 0.28735),
    "q4_k": (0.07161, 0.08718, 0.05430, 0.05034, 0.05424, 0.04868, 0.06938),
    "q5_k": (0.03616, 0.04436, 0.02756, 0.02538, 0.02646, 0.03689, 0.03520),
    "q3_k": (0.15104, 0.18756, 0.12482, 0.13569, 0.17113, 0.07392, 0.14341),
    "q6_k": (0.01779, 0.02317, 0.01315, 0.01637, 0.02168, 0.00827, 0.01647),
    "iq4_nl": (0.07611, 0.09500, 0.06414, 0.07112, 0.08697, 0.05446, 0.07354),
    "iq4_xs": (0.07669, 0.09599, 0.06469, 0.07172, 0.08776, 0.05590, 0.07477),
}


def quantized(key: str, weights: np.ndarray, level: str | None = None) -> np.ndarray:
    """The bytes of the type."""
    line = TABLE[key]
    x = np.ascontiguousarray(weights, np.float32)
    n = x.size // line.block
    out, scratch = np.empty(n * line.block_bytes, np.uint8), np.full(SCRATCH, 0xFF, np.uint8)
    run = require([quantizer(key)], level).function(quantizer(key), 4, returns=False)
    run(x.ctypes.data, n, out.ctypes.data, scratch.ctypes.data)
    return out


def values(key: str, data: np.ndarray) -> np.ndarray:
    return dequantize(data.reshape(1, -1), GGMLType[key.upper()]).reshape(-1)


def relative_error(key: str, weights: np.ndarray) -> float:
    change = values(key, quantized(key, weights)).astype(np.float64) - weights
    return float(np.sqrt(np.square(change).mean() / np.square(weights).mean()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", KEYS)
def test_no_less_exact_than_llama_cpp(key: str, kind: str) -> None:
    weights = KINDS[kind](np.random.default_rng(7)).astype(np.float32)
    assert relative_error(key, weights) < THEIRS[key][list(KINDS).index(kind)]


@pytest.mark.parametrize("key", KEYS)
def test_weights_of_the_type_stay_nearly_as_they_are(key: str) -> None:
    """A file that was quantized before, and is quantized again to the same type, loses little."""
    rng = np.random.default_rng(3)
    weights = values(key, quantized(key, rng.standard_normal(8192)))
    assert relative_error(key, weights) < 0.2 * THEIRS[key][0]


@pytest.mark.parametrize("level", [level for level in ("avx2", "generic") if level in levels()[1:]])
@pytest.mark.parametrize(
    "key", KEYS if os.environ.get("LLMGEN_TEST_EVERY_TYPE") else ["q4_k", "q3_k", "iq4_xs"]
)
def test_the_same_bytes_at_every_level(key: str, level: str) -> None:
    weights = np.random.default_rng(5).standard_t(3, 4096)
    np.testing.assert_array_equal(quantized(key, weights, level), quantized(key, weights))


@pytest.mark.parametrize("key", KEYS)
def test_blocks_do_not_depend_on_their_neighbours(key: str) -> None:
    weights = np.random.default_rng(6).standard_normal(1024)
    parts = [quantized(key, part) for part in np.split(weights, 4)]
    np.testing.assert_array_equal(quantized(key, weights), np.concatenate(parts))


@pytest.mark.parametrize("key", KEYS)
def test_odd_blocks(key: str) -> None:
    """Zeros become zeros; constants, single weights, huge and tiny ones stay close."""
    assert not values(key, quantized(key, np.zeros(512))).any()
    for scale in (0.1, 1.0, 1e3):
        for block in (np.ones(256), -np.ones(256), np.arange(256) == 77, -1.0 * (np.arange(256) == 200)):
            # the IQ4 types have no zero: what is nearest to it is 1/113 of the largest
            assert relative_error(key, block * scale) < (0.06 if key.startswith("iq") else 0.004)
    wide = np.random.default_rng(8).standard_normal(256)
    assert relative_error(key, wide * 1e4) < 1.3 * THEIRS[key][0]


SMALLEST = {
    "q2_k": 1e-6,
    "q3_k": 1e-6,
    "q4_k": 1e-6,
    "q5_k": 1e-6,
    "q6_k": 1e-6,
    "iq4_nl": 1e-5,
    "iq4_xs": 1e-5,
}
"""Weights (their standard deviation) that are told nearly as well as larger ones, though their factor is near 2^-24."""


@pytest.mark.parametrize("key", KEYS)
def test_ends_of_half_precision(key: str) -> None:
    """No factor is taken that half precision rounds to nothing or to twice itself; what is too large shows."""
    weights = np.random.default_rng(8).standard_normal(8192)
    assert relative_error(key, weights * SMALLEST[key]) < 1.7 * THEIRS[key][0]
    for tiny in (1e-8, 1e-20, 1e-42):
        assert np.abs(values(key, quantized(key, weights * tiny))).max() <= 8 * tiny + 2e-6
    assert relative_error(key, weights * 2e5) < 1.3 * THEIRS[key][0]
    with np.errstate(invalid="ignore"):
        assert not np.isfinite(values(key, quantized(key, weights[:256] * 1e9))).any()


@pytest.mark.parametrize("key", KEYS)
def test_signs_and_ends_of_the_range(key: str) -> None:
    """The largest weight may be of either sign, anywhere in a block."""
    rng = np.random.default_rng(9)
    for at in (0, 15, 16, 31, 255):
        for sign in (1, -1):
            block = rng.standard_normal(256) * 0.01
            block[at] = sign
            found = values(key, quantized(key, block))
            assert abs(found[at] - sign) < 0.05, (at, sign, found[at])


def check_the_last_block() -> None:
    """Blocks that end where the memory ends; called in a process of its own."""
    rng = np.random.default_rng(12)
    library = require([f"quants.blocks:{key}" for key in TABLE])
    for key, line in TABLE.items():
        n = 2048 if key.startswith("iq") else 3  # each number of a codebook, with signs of all kinds
        m = random_matrix(key, 1, n * line.block, rng)
        end, out = Guarded(m.data.tobytes()), Guarded(bytes(4 * n * line.block), writable=True)
        print(key, flush=True)
        library.function(f"quants.blocks:{key}", 3, returns=False)(end.address, n, out.address)
        found = out.view(4 * n * line.block).view(np.float32)
        np.testing.assert_array_equal(found, m.floats()[0])


@pytest.mark.skipif(os.name == "nt", reason="memory that cannot be read")
def test_the_last_block_before_the_end_of_a_file() -> None:
    """Blocks of every type become the float32 of the numpy backend, and nothing behind the last is read."""
    code = (
        "import faulthandler as f; f.enable()\nimport kernels.test_quantizers as t; t.check_the_last_block()"
    )
    paths = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert done.returncode == 0, f"died at {done.stdout.splitlines()[-1:]}: {done.stderr[-2000:]}"


def test_mxfp4_by_the_letter() -> None:
    """The low nibbles are the first half of a block, the high ones the second; the scale byte is an exponent.

    OCP Microscaling Formats (MX) v1.0: E2M1 values and an E8M0 scale, 2^(e - 127); 255 is no number there.
    """
    e2m1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    e2m1 = np.concatenate([e2m1, -e2m1])
    run = require(["quants.blocks:mxfp4"]).function("quants.blocks:mxfp4", 3, returns=False)
    codes = np.concatenate([np.arange(16), np.arange(16)[::-1]])
    for exponent in (1, 2, 3, 64, 126, 127, 128, 200, 250):
        block = np.zeros(17 + 64, np.uint8)
        block[0], block[1:17] = exponent, codes[:16] | codes[16:] << 4
        out = np.zeros(32, np.float32)
        run(block.ctypes.data, 1, out.ctypes.data)
        np.testing.assert_array_equal(out, e2m1[codes] * 2.0 ** (exponent - 127))
