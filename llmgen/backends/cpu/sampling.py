"""The sampler's compiled kernels: their memory and their calls.

A whole step is one call, whatever the size of the vocabulary: see backends/cpu/kernels/choice.py.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgen.backends.cpu.kernels.arguments import places
from llmgen.backends.cpu.kernels.sampling_arguments import (
    BLOCK,
    LANES,
    ORDER,
    SAMPLING_KERNELS,
    STAGE_BYTES,
    STAGES,
    Dry,
    Penalties,
    Step,
)
from llmgen.backends.cpu.runtime.library import KernelLibrary
from llmgen.errors import LLMGenError

Floats = NDArray[np.float32]

_AT = places(Step)
_ZIPF = np.log((np.arange(100) + 2.0) / (np.arange(100) + 1.0))


@cache
def _function(name: str) -> Any:
    return KernelLibrary.for_level(None).function(name, SAMPLING_KERNELS[name])


def _address(x: NDArray[Any]) -> int:
    return int(x.__array_interface__["data"][0])  # three times as fast as x.ctypes.data


class _Table:
    """A table ``Step``, whose values are read and written at their places in ``_AT``."""

    def __init__(self) -> None:
        table = np.zeros(len(Step._fields), dtype=np.int64)
        self.address = _address(table)
        self.ints: Any = table.data  # quicker than the array for single values
        self.floats: Any = table.view(np.float64).data

    def update(self, values: dict[str, int]) -> None:
        """Fill in integers and addresses by name."""
        for name, value in values.items():
            self.ints[getattr(_AT, name)] = value


class _Room(threading.local):
    """Each thread's memory for the kernels, touched as far as it is needed."""

    def __init__(self) -> None:
        self.n_vocab = -1
        self.lengths = np.zeros(0, dtype=np.int32)
        self.table = _Table()  # of calls that need nothing else

    def addresses_for(self, n_vocab: int) -> dict[str, int]:
        """The memory for a vocabulary, by name: the same object until it had to grow."""
        if n_vocab > self.n_vocab:
            self._grow(n_vocab)
        return self.addresses

    def _grow(self, n_vocab: int) -> None:
        self.n_vocab = n_vocab
        blocks = -(-n_vocab // BLOCK)
        self.arrays: dict[str, NDArray[Any]] = {
            "work": np.empty(n_vocab, dtype=np.float32),
            "ids": np.empty(n_vocab, dtype=np.int64),
            "maxima": np.empty(LANES * blocks, dtype=np.float32),
            "sums": np.empty(blocks, dtype=np.float32),
            "keys": np.empty(n_vocab, dtype=np.float32),
            "order": np.empty(ORDER, dtype=np.int64),
            "marks": np.zeros(n_vocab, dtype=np.int32),
            "spare": np.zeros(16, dtype=np.float32),
        }
        self.addresses = {name: _address(array) for name, array in self.arrays.items()}
        self.table.update(self.addresses)

    def lengths_for(self, n: int) -> int:
        """The address of int32 [n]."""
        if n > len(self.lengths):
            self.lengths = np.zeros(2 * n, dtype=np.int32)
        return _address(self.lengths)


_room = _Room()


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


class Chain:
    """A chain of samplers; :meth:`choose` is a step.

    ``stages``: in order, each one of the tables in sampling_arguments.STAGES, filled in.
    ``tokens`` and ``bias``: what is added to distinct tokens' logits before them.
    """

    def __init__(
        self,
        n_vocab: int,
        stages: Sequence[Any],
        *,
        greedy: bool = False,
        tokens: NDArray[np.int64] | None = None,
        bias: NDArray[np.float64] | None = None,
    ) -> None:
        self._n_vocab = n_vocab
        self.looks_back = any(isinstance(stage, (Penalties, Dry)) for stage in stages)
        """Whether :meth:`choose` needs the tokens so far."""
        self._tokens = np.zeros(0, dtype=np.int64) if tokens is None else tokens
        self._bias = np.zeros(0) if bias is None else bias
        there = self._tokens < n_vocab
        self._tokens, self._bias = self._tokens[there], self._bias[there]
        self._records = np.zeros((len(stages), STAGE_BYTES // 8), dtype=np.float64)
        for record, stage in zip(self._records, stages, strict=True):
            record[:1].view(np.int64)[0] = STAGES.index(type(stage))
            record[1 : 1 + len(stage)] = stage
        self._table = _Table()
        self._table.update(
            {
                "greedy": greedy,
                "stages": _address(self._records),
                "n_stages": len(stages),
                "biased": _address(self._tokens),
                "biases": _address(self._bias),
                "n_biased": len(self._tokens),
                "zipf": _address(_ZIPF),
            }
        )
        self._room_of: dict[str, int] | None = None

    def choose(
        self,
        x: Floats,
        u: float = 0.0,
        *,
        mu: float = 0.0,
        xtc: bool = False,
        allowed: NDArray[np.bool_] | None = None,
        masked: NDArray[np.int64] | None = None,
        history: NDArray[np.int64] | None = None,
        repeats: Repeats | None = None,
    ) -> tuple[int, float]:
        """The token that a uniform ``u`` chooses from logits float32 [n_vocab], and its probability.

        ``mu`` is Mirostat's, in bits; ``xtc``: it is XTC's turn; ``allowed`` marks the tokens that may
        be chosen, ``masked`` names some that may not; ``history`` is what the penalties look at.
        Raises :class:`LLMGenError` where a logit is NaN or +inf, or none is finite.
        """
        assert x.shape == (self._n_vocab,)
        x = np.ascontiguousarray(x)
        ints, floats = self._table.ints, self._table.floats
        floats[_AT.u], floats[_AT.mu] = u, mu
        ints[_AT.xtc] = xtc
        room = _room.addresses_for(len(x))
        if self._room_of is not room:
            self._room_of = room
            self._table.update(room)
        if allowed is not None:
            allowed = np.ascontiguousarray(allowed)
        ints[_AT.allowed] = 0 if allowed is None else _address(allowed)
        ints[_AT.n_masked] = 0 if masked is None else len(masked)
        if masked is not None:
            ints[_AT.masked] = _address(masked)
        if history is not None:
            ints[_AT.history], ints[_AT.n_history] = _address(history), len(history)
            if repeats is not None:
                ints[_AT.repeats] = _address(repeats.table(len(history)))
                ints[_AT.lengths] = _room.lengths_for(len(history))
                ints[_AT.breakers], ints[_AT.since] = _address(repeats.breakers), repeats.since
        token = _function("choice:choose")(_address(x), len(x), self._table.address)
        if token < 0:
            raise unusable(floats[_AT.peak])
        return token, floats[_AT.share]

    def left(self, x: Floats) -> tuple[NDArray[np.int64] | None, Floats]:
        """The candidates that the last call in this thread chose from: ids (None: all) and logits."""
        ints, floats = self._table.ints, self._table.floats
        n = ints[_AT.count]
        logits = _room.arrays["work"][:n] if ints[_AT.moved] else x
        ids = None if ints[_AT.whole] else _room.arrays["ids"][:n].copy()
        divisor = np.float32(floats[_AT.divisor])
        logits = logits.copy() if divisor == 1 else (logits - np.float32(floats[_AT.peak])) / divisor
        return ids, logits


def head(x: Floats, k: int) -> tuple[NDArray[np.int64], float]:
    """The indices of the k best (at most ORDER) of float32 [n] in order, and ln sum e^x; raises as a step does."""
    assert k <= ORDER
    x = np.ascontiguousarray(x)
    _room.addresses_for(len(x))
    count = _function("choice:head")(_address(x), len(x), k, _room.table.address)
    floats = _room.table.floats
    if count < 0:
        raise unusable(floats[_AT.peak])
    return _room.arrays["ids"][:count].copy(), floats[_AT.peak] + math.log(floats[_AT.sum])


def unusable(peak: float) -> LLMGenError:
    """What to say where the largest logit is ``peak``, which is no finite number."""
    if peak != -math.inf:
        return broken_logits(math.isnan(peak))
    return LLMGenError(
        "every token of the vocabulary is masked, so none can be chosen: remove some of the banned"
        " tokens, logit biases, ignore_eos or min_tokens, or have the constraint allow more"
    )


def broken_logits(are_nan: bool) -> LLMGenError:
    """What to say of logits that are NaN or infinite."""
    found = "not numbers (NaN)" if are_nan else "infinite"
    return LLMGenError(
        f"the model's logits are {found}, where finite ones were expected: the file may be damaged,"
        " or its values may be too large for this key-value cache type (--kv-type f32 has more room)"
    )
