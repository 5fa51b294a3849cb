"""The weights: where they lie in the memory map, and how kernels may read them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from llmgen.backends.cpu.kernels.quants import TABLE, QuantKernels
from llmgen.errors import UnsupportedModelError
from llmgen.gguf import GGMLType, GGUFFile, TensorInfo


@dataclass(frozen=True)
class Matrix:
    """A weight matrix [n_rows, n_cols] as it lies in the file.

    Kernels may read a few bytes behind the row they work on.  Behind the last row of
    a file there may be nothing: ``tail_row`` (or -1) is then read at ``tail_address``,
    a copy with room behind it.
    """

    name: str
    address: int
    n_rows: int
    n_cols: int
    row_bytes: int  # from one row to the next
    kernels: QuantKernels
    tail_row: int = -1
    tail_address: int = 0

    @property
    def nbytes(self) -> int:
        return self.n_rows * self.row_bytes

    @property
    def arguments(self) -> dict[str, int]:
        """Where it lies, as the kernels' tables name it."""
        return {
            "weights": self.address,
            "row_bytes": self.row_bytes,
            "tail_row": self.tail_row,
            "tail_address": self.tail_address,
        }

    def rows(self, first: int, count: int) -> Matrix:
        """Rows [first, first + count) as a matrix of its own."""
        tail = self.tail_row - first if first <= self.tail_row < first + count else -1
        return replace(self, address=self.address + first * self.row_bytes, n_rows=count, tail_row=tail)


@dataclass(frozen=True)
class Vector:
    """A small row of float32 (norm weights, biases): a copy, padded to 16 values with zeros."""

    name: str
    address: int
    n: int
    rows: int = 1
    """More than one: a row per head, ``n`` values each, without padding between them."""


class Weights:
    """The tensors of a model by GGUF name (without '.weight'), with their shapes checked where they are bound."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self._copies: list[np.ndarray] = []
        self._bound: dict[str, Matrix | Vector] = {}
        self._read: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether the file has the tensor; ``name`` as in ``matrix`` or with '.bias'."""
        return _full(name) in self._file.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """GGUF shape, fastest axis first; () where there is no such tensor."""
        tensor = self._file.tensors.get(_full(name))
        return tensor.shape if tensor else ()

    def matrix(self, name: str, n_rows: int, n_cols: int) -> Matrix:
        """The matrix ``name``, which must be [n_rows, n_cols]."""
        if (bound := self._bound.get(name)) is not None:
            if isinstance(bound, Matrix) and (bound.n_rows, bound.n_cols) == (n_rows, n_cols):
                return bound
        tensor = self._tensor(name, (n_cols, n_rows))
        kernels = TABLE.get(tensor.type.name.lower())
        if kernels is None:
            supported = ", ".join(key.upper() for key in TABLE)
            raise UnsupportedModelError(
                f"tensor {tensor.name} has the type {tensor.type.name}, which llmgen cannot multiply by; "
                f"use a file whose tensors are of the types {supported}"
            )
        matrix = Matrix(name, tensor.address, n_rows, n_cols, tensor.row_bytes, kernels)
        if tensor.slack < kernels.overread:
            matrix = self._with_tail(matrix, tensor)
        self._bound[name] = matrix
        return matrix

    def _with_tail(self, matrix: Matrix, tensor: TensorInfo) -> Matrix:
        """Copy the last row to where there is room behind it; all rows where that room is longer than they."""
        short = matrix.row_bytes < matrix.kernels.overread
        nbytes = matrix.nbytes if short else matrix.row_bytes
        copy = np.zeros(nbytes + matrix.kernels.overread + 64, dtype=np.uint8)
        copy[:nbytes] = tensor.data[-nbytes:]
        address = self.keep(copy)
        if short:
            return replace(matrix, address=address)
        return replace(matrix, tail_row=matrix.n_rows - 1, tail_address=address)

    def vector(self, name: str, n: int, rows: int = 1) -> Vector:
        """The float vector ``name`` of n values (or ``rows`` times n)."""
        if (bound := self._bound.get(name)) is not None:
            if isinstance(bound, Vector) and (bound.n, bound.rows) == (n, rows):
                return bound
        tensor = self._tensor(name, (n,) if rows == 1 else (n, rows))
        return self._copied(name, _as_float32(tensor), n, rows)

    def _copied(self, name: str, values: np.ndarray, n: int, rows: int) -> Vector:
        copy = np.zeros(-(-values.size // 16) * 16 + 16, dtype=np.float32)
        copy[: values.size] = values
        vector = Vector(name, self.keep(copy), n, rows)
        self._bound[name] = vector
        return vector

    def optional_vector(self, name: str, n: int) -> Vector | None:
        return self.vector(name, n) if self.has(name) else None

    def vector_parts(self, name: str, sizes: tuple[int, ...]) -> list[Vector]:
        """The float vector ``name`` cut into parts of the given sizes."""
        values = _as_float32(self._tensor(name, (sum(sizes),)))
        ends = np.cumsum(sizes)
        return [
            self._copied(f"{name}[{i}]", values[e - n : e], n, 1)
            for i, (e, n) in enumerate(zip(ends, sizes, strict=True))
        ]

    def skip(self, name: str) -> None:
        """Count the tensor as read, if it is there: it belongs to the model, but no logit depends on it."""
        self._read.add(_full(name))

    def unread(self) -> list[str]:
        """The full names of the file's tensors that nothing was made of so far, in file order."""
        return [name for name in self._file.tensors if name not in self._read]

    def keep(self, values: np.ndarray) -> int:
        """The address of an array that lives as long as the weights."""
        self._copies.append(values)
        return int(values.ctypes.data)

    def values(self, name: str, n: int) -> np.ndarray:
        """A small float vector as an array, float64 [n]."""
        return _as_float32(self._tensor(name, (n,))).astype(np.float64)

    def _tensor(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        tensor = self._file.tensors.get(_full(name))
        if tensor is None:
            raise UnsupportedModelError(
                f"the model has no tensor {_full(name)}; the file is incomplete or not supported"
            )
        found = tuple(tensor.shape)
        while len(found) > len(shape) and found[-1] == 1:
            found = found[:-1]
        if found != shape:
            raise UnsupportedModelError(
                f"tensor {tensor.name} has the shape {list(tensor.shape)}, expected {list(shape)} "
                "after the file's metadata; the file is damaged or not supported"
            )
        self._read.add(tensor.name)
        return tensor


def _full(name: str) -> str:
    return name if name.endswith((".bias", ".weight")) else f"{name}.weight"


def _as_float32(tensor: TensorInfo) -> np.ndarray:
    """A small float tensor as float32, flat."""
    data = tensor.data
    if tensor.type is GGMLType.F32:
        return np.frombuffer(data.tobytes(), dtype="<f4")
    if tensor.type is GGMLType.F16:
        return np.frombuffer(data.tobytes(), dtype="<f2").astype(np.float32)
    if tensor.type is GGMLType.BF16:
        return (np.frombuffer(data.tobytes(), dtype="<u2").astype(np.uint32) << 16).view(np.float32)
    raise UnsupportedModelError(
        f"tensor {tensor.name} has the type {tensor.type.name}, expected F32, F16 or BF16 for a norm or a bias"
    )
