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
from llmgen.kernels.layout import (
    CHOICE_FIELDS,
    CHOICE_MOST_K,
    SAMPLING_BLOCK,
    SAMPLING_KERNELS,
    SAMPLING_LANES,
    choice_room,
)
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


class Chooser:
    """A whole sampling step in one call (see kernels/choice.py), with the memory that it works in.

    Not for several threads at a time.
    """

    def __init__(
        self,
        n_vocab: int,
        *,
        temp: float,
        top_k: int = 0,
        typical_p: float = 1.0,
        top_p: float = 1.0,
        log_min_p: float = -np.inf,
    ) -> None:
        self._takes_k = top_k <= CHOICE_MOST_K
        self._room = np.empty(choice_room(n_vocab), dtype=np.float32)
        self._ids = np.empty(n_vocab, dtype=np.int64)  # touched as far as there are candidates
        self._values = np.zeros(len(CHOICE_FIELDS), dtype=np.float64)
        given = {"temp": temp, "top_k": top_k, "typical_p": typical_p, "top_p": top_p, "log_min_p": log_min_p}
        for name, value in given.items():
            self._values[CHOICE_FIELDS[name]] = value
        self._memory = (_address(self._values), _address(self._room), _address(self._ids))

    def choose(self, x: NDArray[Any], u: float, mu: float = -np.inf) -> tuple[int, float] | None:
        """The token that a uniform ``u`` chooses from logits float32 [n_vocab], and its probability.

        ``mu`` is Mirostat's, in bits.  The probability is told where candidates were
        cut out.  None where the kernel does not apply, or no logit is finite, or one is NaN.
        """
        function = _function("choice:choose") if self._takes_k and _fits(x) else None
        if function is None:
            return None
        self._values[CHOICE_FIELDS["u"]] = u
        self._values[CHOICE_FIELDS["mu"]] = mu
        values, room, ids = self._memory
        token = function(_address(x), len(x), values, _values.address, room, ids)
        return None if token < 0 else (token, float(self._values[CHOICE_FIELDS["share"]]))


def head(x: NDArray[Any], k: int) -> tuple[NDArray[np.int64], float] | None:
    """The k best tokens in order, and ln sum e^x; None as in :meth:`Chooser.choose`."""
    function = _function("choice:head") if _fits(x) and k <= CHOICE_MOST_K else None
    if function is None:
        return None
    room, ids = np.empty(choice_room(len(x)), dtype=np.float32), np.empty(len(x), dtype=np.int64)
    values = np.zeros(len(CHOICE_FIELDS), dtype=np.float64)
    memory = _address(values), _values.address, _address(room), _address(ids)
    count = function(_address(x), len(x), k, *memory)
    if count < 0:
        return None
    total = float(values[CHOICE_FIELDS["peak"]] + np.log(values[CHOICE_FIELDS["total"]]))
    return ids[:count].copy(), total
