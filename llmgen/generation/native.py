"""Whole vocabularies through compiled kernels: one pass where numpy takes several.

Each function returns None where the kernels do not apply (few values, float64, not
contiguous, or no compiler on this machine); the caller then does the same in numpy.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgen.errors import KernelError
from llmgen.kernels.layout import SAMPLING_BLOCK, SAMPLING_KERNELS, SAMPLING_LANES
from llmgen.kernels.library import KernelLibrary

Floats = NDArray[np.float32]

_FROM = 4096  # below it, calling costs more than it saves


@cache
def _function(name: str) -> Any:
    """The kernel, or None where it cannot be compiled: slower then, but the same answers."""
    try:
        return KernelLibrary.for_level(None).function(name, SAMPLING_KERNELS[name])
    except KernelError:
        return None


class _Values(threading.local):
    """Each thread's ``values`` for the kernels (see kernels/sampling.py)."""

    def __init__(self) -> None:
        self.array = np.zeros(32, dtype=np.float32)
        self.address = _address(self.array)


def _address(x: NDArray[Any]) -> int:
    return int(x.__array_interface__["data"][0])  # three times as fast as x.ctypes.data


_values = _Values()


def _call(name: str, x: NDArray[Any], values: tuple[float, ...], *outputs: Floats) -> bool:
    function = _function(name)
    if function is None:
        return False
    for i, value in enumerate(values):
        _values.array[i] = value
    function(_address(x), len(x), _values.address, *map(_address, outputs))
    return True


def _fits(x: NDArray[Any]) -> bool:
    return len(x) > _FROM and x.dtype == np.float32 and x.flags.c_contiguous


def _per_block(x: NDArray[Any]) -> Floats:
    return np.empty(-(-len(x) // SAMPLING_BLOCK), dtype=np.float32)


def exp_sums(x: NDArray[Any], peak: float) -> Floats | None:
    """Sums of e^(x - peak) over blocks of 512, for x float32 [n] whose largest value is ``peak``."""
    if not _fits(x):
        return None
    sums = _per_block(x)
    return sums if _call("sampling:exp_sums", x, (peak,), sums) else None


def exp_dots(x: NDArray[Any], peak: float) -> tuple[float, float] | None:
    """Sum of e^(x - peak) and of e^(x - peak) (x - peak)."""
    if not _fits(x):
        return None
    sums, dots = _per_block(x), _per_block(x)
    if not _call("sampling:exp_dots", x, (peak,), sums, dots):
        return None
    return float(sums.sum(dtype=np.float64)), float(dots.sum(dtype=np.float64))


def maxima(x: NDArray[Any]) -> Floats | None:
    """The largest of every 16th value of each block of 512: float32 [16 * blocks], NaN where one is NaN."""
    if not _fits(x):
        return None
    out = np.empty(SAMPLING_LANES * -(-len(x) // SAMPLING_BLOCK), dtype=np.float32)
    return out if _call("sampling:maxima", x, (), out) else None


def deviation(x: NDArray[Any], near: float) -> float | None:
    """The standard deviation of x; ``near`` is any number not far from the mean.

    None also where a value is infinite.
    """
    if not _fits(x):
        return None
    sums, squares = _per_block(x), _per_block(x)
    if not _call("sampling:moments", x, (near,), sums, squares):
        return None
    mean = float(sums.sum(dtype=np.float64)) / len(x)
    variance = float(squares.sum(dtype=np.float64)) / len(x) - mean * mean
    return float(np.sqrt(max(variance, 0.0))) if np.isfinite(variance) else None


def scaled(x: NDArray[Any], shift: float, divisor: float) -> Floats | None:
    """(x - shift) / divisor."""
    if not _fits(x):
        return None
    out = np.empty(len(x), dtype=np.float32)
    return out if _call("sampling:scaled", x, (shift, divisor), out) else None


def nearness(x: NDArray[Any], center: float) -> Floats | None:
    """-|x - center|."""
    if not _fits(x):
        return None
    out = np.empty(len(x), dtype=np.float32)
    return out if _call("sampling:nearness", x, (center,), out) else None
