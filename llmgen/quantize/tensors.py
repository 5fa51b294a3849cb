"""The bytes of a tensor in another type, a piece at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt

from llmgen.backends.cpu.kernels.quantizers import QUANTIZERS, SCRATCH, quantizer
from llmgen.backends.cpu.kernels.quants import TABLE
from llmgen.backends.cpu.runtime.library import KernelLibrary, Progress
from llmgen.errors import UnsupportedModelError, shown
from llmgen.gguf import GGMLType
from llmgen.quantize.plan import TensorPlan

_PIECE = 1 << 20
"""Values of a piece: whole blocks of every type."""

_FLOATS_TOGETHER = 32

Floats = npt.NDArray[np.float32]
Exact = npt.NDArray[np.float32] | npt.NDArray[np.float64]
"""Weights as the file has them: float64 if they are F64."""
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Loss:
    """What some weights lost: the sums of squares of their ``error``, and of themselves (``size``).

    ``n_lost``: how many are in blocks of which nothing is left, because they are too small for the type.
    """

    error: float = 0.0
    size: float = 0.0
    n_lost: int = 0

    def __add__(self, other: Loss) -> Loss:
        return Loss(self.error + other.error, self.size + other.size, self.n_lost + other.n_lost)

    @property
    def relative(self) -> float:
        """The error relative to the size (root mean square)."""
        return sqrt(self.error / self.size) if self.size else 0.0


@dataclass(frozen=True)
class Piece:
    """Some of a tensor in its new type."""

    data: Bytes
    n_values: int
    loss: Loss = Loss()


class Converter:
    """Turns tensors into other types, with the kernels of this process and the gguf package."""

    def __init__(self) -> None:
        self._library = KernelLibrary.for_level()

    def prepare(self, plans: Iterable[TensorPlan], progress: Progress | None = None) -> None:
        """Load or compile all kernels that these tensors need."""
        kinds = {kind for p in plans for kind in (p.type, p.tensor.type) if _key(kind) in TABLE}
        to = {_key(p.type) for p in plans if p.changes}
        names = [f"quants.blocks:{_key(kind)}" for kind in sorted(kinds)]
        self._library.require([*names, *(quantizer(key) for key in sorted(to & set(QUANTIZERS)))], progress)

    def pieces(self, plan: TensorPlan, pool: ThreadPoolExecutor, n_threads: int) -> Iterator[Piece]:
        """The tensor in its new type, in order; only a few pieces exist at a time.

        Raises UnsupportedModelError for weights that are not finite, or are not in the new type.
        """
        waiting: deque[Future[Piece]] = deque()
        try:
            for start in range(0, plan.tensor.n_elements, _PIECE):
                waiting.append(pool.submit(self._piece, plan, start))
                if len(waiting) > n_threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for piece in waiting:
                piece.cancel()

    def _piece(self, plan: TensorPlan, start: int) -> Piece:
        source = plan.tensor.type
        n = min(_PIECE, plan.tensor.n_elements - start)
        data = plan.tensor.data[source.bytes_for(start) : source.bytes_for(start + n)]
        if _key(source) not in TABLE:
            return Piece(data, n)
        weights = self._floats(data, source, n)
        if plan.factors is not None:
            weights *= _stretched(plan.factors, plan.tensor.n_elements, start, n)
        exact = data.view("<f8") if source is GGMLType.F64 else weights
        _check_finite(exact, plan)
        if not plan.changes:
            return Piece(data, n)
        if not np.isfinite(weights).all():
            raise _too_large(exact, plan)
        out = self._quantized(weights, plan.type)
        return Piece(out, n, _loss(exact, self._floats(out, plan.type, n), plan))

    def _floats(self, data: Bytes, kind: GGMLType, n: int) -> Floats:
        """n values from bytes of a type; all levels and llama.cpp give the same."""
        out = np.empty(n, np.float32)
        run = self._library.function(f"quants.blocks:{_key(kind)}", 3, returns=False)
        run(data.ctypes.data, n // kind.block_size, out.ctypes.data)
        return out

    def _quantized(self, weights: Floats, kind: GGMLType) -> Bytes:
        if _key(kind) not in QUANTIZERS:
            return _by_gguf(weights, kind)
        n = len(weights) // kind.block_size
        out, scratch = np.empty(n * kind.block_bytes, np.uint8), np.empty(SCRATCH, np.uint8)
        run = self._library.function(quantizer(_key(kind)), 4, returns=False)
        run(weights.ctypes.data, n, out.ctypes.data, scratch.ctypes.data)
        return out


def _stretched(factors: Floats, n_elements: int, start: int, n: int) -> Floats:
    """The factor of each of n values of a tensor from ``start`` on; it has one for every stretch of equal length."""
    if len(factors) == 1:
        return factors
    return factors[(start + np.arange(n)) // (n_elements // len(factors))]


def _check_finite(weights: Exact, plan: TensorPlan) -> None:
    if not np.isfinite(weights).all():
        raise UnsupportedModelError(
            f"the tensor {shown(plan.tensor.name)} has weights that are NaN or infinite, expected numbers; "
            "the model is damaged, get it again or from another source"
        )


def _loss(weights: Exact, values: Floats, plan: TensorPlan) -> Loss:
    """What is lost where weights have become values.  Raises UnsupportedModelError for weights that are too large.

    A block is lost if its error is as large as itself, so that zeros would be as good: scales have a smallest
    number (2^-24 in half precision).  Of floats, 32 count as a block: one that becomes zero beside larger ones is
    no loss.  Large weights can be lost, too: the sums of squares that a quantizer compares overflow.
    """
    if not np.isfinite(values).all():
        raise _too_large(weights, plan)
    squares = np.square(weights, dtype=np.float64)
    errors = np.square(values - weights, dtype=np.float64)
    starts = np.arange(0, len(weights), max(plan.type.block_size, _FLOATS_TOGETHER))
    sizes = np.add.reduceat(squares, starts)
    lost = (np.add.reduceat(errors, starts) >= sizes) & (sizes > 0)
    if lost.any() and np.maximum.reduceat(np.abs(weights), starts)[lost].max() > 1:
        raise _too_large(weights, plan)
    n_lost = int(np.diff(starts, append=len(weights))[lost].sum())
    return Loss(float(errors.sum()), float(squares.sum()), n_lost)


def _too_large(weights: Exact, plan: TensorPlan) -> UnsupportedModelError:
    largest = weights[np.abs(weights).argmax()]
    choices = "F32" if plan.type is GGMLType.BF16 else "BF16 or F32"
    fits = abs(largest) <= np.finfo(np.float32).max
    way_out = f"choose {choices}" if fits else "no type that can be written has room for it"
    return UnsupportedModelError(
        f"the tensor {shown(plan.tensor.name)} has a weight of {largest:.5g}, which is too large for "
        f"{plan.type.name}; {way_out}"
    )


def _by_gguf(weights: Floats, kind: GGMLType) -> Bytes:
    """The other types as the gguf package rounds to them, which is how llama.cpp does."""
    from gguf.quants import quantize

    from gguf import GGMLQuantizationType

    with np.errstate(
        over="ignore", invalid="ignore", divide="ignore"
    ):  # what overflows is refused afterwards
        out = quantize(weights.reshape(1, -1), GGMLQuantizationType(int(kind)))
    return np.ascontiguousarray(out).view(np.uint8).reshape(-1)


def _key(kind: GGMLType) -> str:
    return kind.name.lower()


Done = Callable[[int, int], None]
"""Called with (values done, values in all)."""
