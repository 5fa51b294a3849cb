"""Whole vocabularies through compiled kernels: one pass where numpy takes several.

Each function returns None where the kernels do not apply (few values, float64, not
contiguous, or no compiler on this machine); the caller then does the same in numpy.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgen.backends.cpu.kernels.layout import (
    CHOICE_FIELDS,
    CHOICE_ORDER,
    CHOICE_PLACES,
    CHOICE_STAGE,
    CHOICE_STAGES,
    SAMPLING_BLOCK,
    SAMPLING_KERNELS,
    SAMPLING_LANES,
)
from llmgen.backends.cpu.runtime.library import KernelLibrary
from llmgen.errors import KernelError

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


class _Room(threading.local):
    """Each thread's memory for the kernels of kernels/choice.py, touched as far as it is needed."""

    def __init__(self) -> None:
        self.n_vocab = 0
        self.lengths = np.zeros(0, dtype=np.int32)

    def fit(self, n_vocab: int) -> None:
        """Make room for a vocabulary."""
        if n_vocab <= self.n_vocab:
            return
        self.n_vocab = n_vocab
        blocks = -(-n_vocab // SAMPLING_BLOCK)
        self.arrays: dict[str, NDArray[Any]] = {
            "work": np.empty(n_vocab, dtype=np.float32),
            "ids": np.empty(n_vocab, dtype=np.int64),
            "maxima": np.empty(SAMPLING_LANES * blocks, dtype=np.float32),
            "sums": np.empty(blocks, dtype=np.float32),
            "keys": np.empty(n_vocab, dtype=np.float32),
            "order": np.empty(CHOICE_ORDER, dtype=np.int64),
            "marks": np.zeros(n_vocab, dtype=np.int32),
            "spare": np.zeros(32, dtype=np.float32),
        }
        self.addresses = {name: _address(array) for name, array in self.arrays.items()}
        self.places = np.zeros(len(CHOICE_PLACES), dtype=np.int64)
        for name, address in self.addresses.items():
            self.places[CHOICE_PLACES[name]] = address
        self.values = np.zeros(len(CHOICE_FIELDS), dtype=np.float64)
        self.memory = _address(self.values), _address(self.places)  # of calls that need nothing else

    def lengths_for(self, n: int) -> int:
        """The address of int32 [n]."""
        if n > len(self.lengths):
            self.lengths = np.zeros(2 * n, dtype=np.int32)
        return _address(self.lengths)


_room = _Room()
_U, _MU, _SHARE = (CHOICE_FIELDS[name] for name in ("u", "mu", "share"))
_N_MASKED = CHOICE_PLACES["n_masked"]
_ZIPF = np.log((np.arange(128) + 2.0) / (np.arange(128) + 1.0))


class Repeats:
    """What DRY has to know: its penalties by length, the tokens that are breakers, the tokens since the last one."""

    def __init__(self, multiplier: float, base: float, breakers: NDArray[np.uint8]) -> None:
        self._multiplier, self._base = multiplier, base
        self._table = np.zeros(0, dtype=np.float64)
        self.breakers = breakers
        self.since = 0

    def table(self, longest: int) -> NDArray[np.float64]:
        """multiplier * base ** i for i up to ``longest`` at least."""
        if longest >= len(self._table):
            exponents = np.arange(2 * longest + 64, dtype=np.float64)
            with np.errstate(over="ignore"):
                self._table = np.minimum(self._multiplier * self._base**exponents, 1e38)
        return self._table


class Chooser:
    """A whole sampling step in one call (see kernels/choice.py).

    ``stages``: the samplers in order, each a name of CHOICE_STAGES and its parameters.
    ``tokens`` and ``bias``: what is added to distinct tokens' logits before them.
    """

    def __init__(
        self,
        n_vocab: int,
        stages: Sequence[tuple[str, *tuple[float, ...]]],
        *,
        greedy: bool = False,
        tokens: NDArray[np.int64] | None = None,
        bias: NDArray[np.float64] | None = None,
    ) -> None:
        self._n_vocab = n_vocab
        self._tokens = np.zeros(0, dtype=np.int64) if tokens is None else tokens
        self._bias = np.zeros(0) if bias is None else bias
        there = self._tokens < n_vocab
        self._tokens, self._bias = self._tokens[there], self._bias[there]
        values = np.zeros(len(CHOICE_FIELDS) + CHOICE_STAGE * len(stages), dtype=np.float64)
        self._values_address = _address(values)
        self._values: Any = values.data  # quicker than the array for single values
        for field, value in (("stages", len(stages)), ("greedy", greedy), ("zipf", _address(_ZIPF))):
            self._values[CHOICE_FIELDS[field]] = value
        self._at = {}
        for i, (name, *parameters) in enumerate(stages):
            at = self._at[name] = len(CHOICE_FIELDS) + CHOICE_STAGE * i
            values[at : at + 1 + len(parameters)] = [CHOICE_STAGES[name], *parameters]
        self._looks_back = "penalties" in self._at or "dry" in self._at
        places = np.zeros(len(CHOICE_PLACES), dtype=np.int64)
        self._places_address = _address(places)
        self._places: Any = places.data
        self._room_of: dict[str, int] | None = None

    def choose(
        self,
        x: NDArray[Any],
        u: float = 0.0,
        *,
        mu: float = 0.0,
        xtc_threshold: float = 2.0,
        masked: NDArray[np.int64] | None = None,
        history: NDArray[np.int64] | None = None,
        repeats: Repeats | None = None,
    ) -> tuple[int, float] | None:
        """The token that a uniform ``u`` chooses from logits float32 [n_vocab], and its probability.

        ``mu`` is Mirostat's, in bits; ``xtc_threshold`` that of this step; ``masked`` are tokens
        that may not be chosen; ``history`` is what the penalties look at.  None where
        the kernel does not apply, or no logit is finite, or one is NaN or infinite.
        """
        function = _function("choice:choose") if _fits(x) and len(x) == self._n_vocab else None
        if function is None:
            return None
        self._values[_U] = u
        self._values[_MU] = mu
        if "xtc" in self._at:
            self._values[self._at["xtc"] + 1] = xtc_threshold
        _room.fit(len(x))
        if self._room_of is not _room.addresses:
            self._move_in()
        self._places[_N_MASKED] = 0 if masked is None else len(masked)
        if masked is not None:
            self._places[CHOICE_PLACES["masked"]] = _address(masked)
        if self._looks_back and history is not None:
            self._look_back(history, repeats)
        token = function(_address(x), len(x), self._values_address, self._places_address)
        return None if token < 0 else (token, self._values[_SHARE])

    def left(self, x: NDArray[Any]) -> tuple[NDArray[np.int64] | None, NDArray[np.float32]]:
        """The candidates that the last call in this thread chose from: ids (None: all) and logits."""
        n = int(self._get("count"))
        logits = _room.arrays["work"][:n] if self._get("moved") else x
        ids = None if self._get("whole") else _room.arrays["ids"][:n].copy()
        divisor = np.float32(self._get("divisor"))
        logits = logits.copy() if divisor == 1 else (logits - np.float32(self._get("peak"))) / divisor
        return ids, logits

    def _move_in(self) -> None:
        """Take note of this thread's room."""
        self._room_of = _room.addresses
        fixed = {
            "biased": _address(self._tokens),
            "biases": _address(self._bias),
            "n_biased": len(self._tokens),
        }
        for name, value in {**_room.addresses, **fixed}.items():
            self._places[CHOICE_PLACES[name]] = value

    def _look_back(self, history: NDArray[np.int64], repeats: Repeats | None) -> None:
        found = {"history": _address(history), "n_history": len(history)}
        if repeats is not None:
            found |= {
                "repeats": _address(repeats.table(len(history))),
                "lengths": _room.lengths_for(len(history)),
                "breakers": _address(repeats.breakers),
                "since": repeats.since,
            }
        for name, value in found.items():
            self._places[CHOICE_PLACES[name]] = value

    def _get(self, field: str) -> float:
        return float(self._values[CHOICE_FIELDS[field]])


def head(x: NDArray[Any], k: int) -> tuple[NDArray[np.int64], float] | None:
    """The k best tokens in order, and ln sum e^x; None as in :meth:`Chooser.choose`."""
    usable = x.dtype == np.float32 and x.flags.c_contiguous and 0 < len(x) and k <= CHOICE_ORDER
    function = _function("choice:head") if usable else None
    if function is None:
        return None
    _room.fit(len(x))
    count = function(_address(x), len(x), k, *_room.memory)
    if count < 0:
        return None
    total = float(_room.values[CHOICE_FIELDS["peak"]]) + math.log(_room.values[CHOICE_FIELDS["sum"]])
    return _room.arrays["ids"][:count].copy(), total
