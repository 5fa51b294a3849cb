"""The weights of a model by name; each backend reads them in its own way.

A tensor is checked when an architecture asks for it, so recording a forward pass once
checks the whole file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from llmgen.errors import UnsupportedModelError
from llmgen.gguf import GGMLType, GGUFFile, TensorInfo
from llmgen.gguf.dequantize import dequantize
from llmgen.gguf.types import WEIGHT_TYPES

_FACTORED = re.compile(
    r"blk\.\d+\.(attn_(q|k|v|output|qkv|gate)|ssm_(in|out|alpha|beta)|ffn_(gate|up|down)(_shexp)?)", re.ASCII
)
"""The matrices of a layer that may have a factor: those for which llama.cpp loads one, whatever the
architecture (``load_tensors`` in src/llama-model.cpp).  Experts have theirs as a vector."""


@dataclass(frozen=True)
class Matrix:
    """Rows [first_row, first_row + n_rows) of a weight matrix, n_cols values each, as they lie in the file."""

    tensor: TensorInfo
    n_rows: int
    n_cols: int
    first_row: int = 0
    factor: float = 1.0
    """What all weights are multiplied by besides, as in files with NVFP4."""

    @property
    def name(self) -> str:
        return self.tensor.name

    def rows(self, first: int, count: int) -> Matrix:
        """``count`` rows from ``first`` on, as a matrix."""
        return replace(self, n_rows=count, first_row=self.first_row + first)

    def parts(self, sizes: Sequence[int]) -> list[Matrix]:
        """The rows cut into parts of the given sizes."""
        return [self.rows(sum(sizes[:i]), n) for i, n in enumerate(sizes)]


@dataclass(frozen=True)
class Experts:
    """A matrix for each of ``n_experts`` experts, one behind the other in a tensor of three dimensions.

    Of each matrix the rows [first_row, first_row + n_rows), n_cols values each.
    """

    tensor: TensorInfo
    n_experts: int
    n_rows: int
    n_cols: int
    whole_rows: int
    """Rows from one expert's matrix to the next."""
    first_row: int = 0

    def rows(self, first: int, count: int) -> Experts:
        """``count`` rows of each matrix from ``first`` on."""
        return replace(self, n_rows=count, first_row=self.first_row + first)

    def of(self, expert: int) -> Matrix:
        """The matrix of one expert."""
        return Matrix(self.tensor, self.n_rows, self.n_cols, expert * self.whole_rows + self.first_row)

    @property
    def all_rows(self) -> Matrix:
        """All matrices as one, from the first row of the first to the last row of the last."""
        n_rows = (self.n_experts - 1) * self.whole_rows + self.n_rows
        return Matrix(self.tensor, n_rows, self.n_cols, self.first_row)


@dataclass(frozen=True, eq=False)
class Vector:
    """Norm weights or biases: float32 [n], or [rows, n] for one row per head."""

    name: str
    values: np.ndarray

    @property
    def n(self) -> int:
        """Values of a row."""
        return int(self.values.shape[-1])

    @property
    def rows(self) -> int:
        return len(self.values) if self.values.ndim > 1 else 1


class Weights:
    """The tensors of a file by GGUF name (without '.weight'), shapes checked.

    The methods raise UnsupportedModelError for a tensor that is missing or has another shape.
    """

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self._vectors: dict[tuple[str, int, int], Vector] = {}
        self._read: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether the file has the tensor; ``name`` as in ``matrix`` or with '.bias'."""
        return self._full(name) in self._file.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """GGUF shape, fastest axis first; () where there is no such tensor."""
        tensor = self._file.tensors.get(self._full(name))
        return tensor.shape if tensor else ()

    def matrix(self, name: str, n_rows: int, n_cols: int) -> Matrix:
        """The matrix ``name``, which must be [n_rows, n_cols]."""
        tensor = self._tensor(name, (n_cols, n_rows))
        return Matrix(tensor, n_rows, n_cols, factor=self._factor(tensor))

    def _factor(self, tensor: TensorInfo) -> float:
        """The factor that the file has for a matrix.

        There may also be an ``input_scale``, made for products with FP4 activations (and left in the
        file when llama.cpp gives the matrix another type); it cancels out, and like llama.cpp's graphs no
        other product needs it.
        """
        stem = tensor.name.removesuffix(".weight")
        fp4 = tensor.type is GGMLType.NVFP4
        if not (_FACTORED.fullmatch(stem) or (stem == "output" and fp4)):
            return 1.0
        self.skip(f"{stem}.input_scale")
        if not self.has(f"{stem}.scale"):
            return 1.0
        factor = float(self.vector(f"{stem}.scale", 1).values[0])
        if not math.isfinite(factor):
            raise UnsupportedModelError(
                f"tensor {stem}.scale is {factor}, expected a finite number; the file is damaged, download it again"
            )
        return factor

    def experts(self, name: str, n_experts: int, n_rows: int, n_cols: int) -> Experts:
        """The tensor ``name``, which must be [n_experts, n_rows, n_cols]."""
        tensor = self._tensor(name, (n_cols, n_rows, n_experts))
        self.skip(f"{name}.input_scale")  # see ``_factor``
        return Experts(tensor, n_experts, n_rows, n_cols, n_rows)

    def head_matrices(self, name: str, n_heads: int, n_rows: int, n_cols: int) -> list[Matrix]:
        """The matrix of each head, which together must be [n_heads, n_rows, n_cols]."""
        whole = Matrix(self._tensor(name, (n_cols, n_rows, n_heads)), n_heads * n_rows, n_cols)
        return [whole.rows(head * n_rows, n_rows) for head in range(n_heads)]

    def vector(self, name: str, n: int, rows: int = 1) -> Vector:
        """The float vector ``name`` of n values, or of ``rows`` times n."""
        key = (name, n, rows)
        if key not in self._vectors:
            values = _as_float32(self._tensor(name, (n,) if rows == 1 else (n, rows)))
            self._vectors[key] = Vector(name, values if rows == 1 else values.reshape(rows, n))
        return self._vectors[key]

    def ones(self, n: int) -> Vector:
        """A vector of ones, for a norm without weights."""
        key = ("", n, 1)
        if key not in self._vectors:
            self._vectors[key] = Vector("", np.ones(n, np.float32))
        return self._vectors[key]

    def derived(self, name: str, make: Callable[[], np.ndarray]) -> Vector:
        """A vector that is computed from others once; ``name`` tells it from all others."""
        key = (name, -1, 1)
        if key not in self._vectors:
            self._vectors[key] = Vector(name, np.ascontiguousarray(make(), np.float32))
        return self._vectors[key]

    def optional_vector(self, name: str, n: int) -> Vector | None:
        """``vector``, or None where the file does not have it."""
        return self.vector(name, n) if self.has(name) else None

    def vector_parts(self, name: str, sizes: tuple[int, ...]) -> list[Vector]:
        """The float vector ``name`` cut into parts of the given sizes."""
        whole = self.vector(name, sum(sizes))
        ends = np.cumsum(sizes)
        parts = []
        for i, (end, n) in enumerate(zip(ends, sizes, strict=True)):
            key = (f"{name}[{i}]", n, 1)
            if key not in self._vectors:
                self._vectors[key] = Vector(key[0], whole.values[end - n : end])
            parts.append(self._vectors[key])
        return parts

    def skip(self, name: str) -> None:
        """Count the tensor as read, if it is there: it belongs to the model, but no logit depends on it.

        With a matrix its factors are skipped.
        """
        full = self._full(name)
        stem = full.removesuffix(".weight")
        self._read.update((full, f"{stem}.scale", f"{stem}.input_scale"))

    def skip_layer(self, layer: int) -> None:
        """``skip`` all tensors of a layer."""
        self._read.update(name for name in self._file.tensors if name.startswith(f"blk.{layer}."))

    def unread(self) -> list[str]:
        """The full names of the file's tensors that nothing was made of so far, in file order."""
        return [name for name in self._file.tensors if name not in self._read]

    def numbers(self, name: str, rows: int, n: int, limit: int) -> np.ndarray:
        """A table of whole numbers from 0 to below ``limit``, int64 [rows, n]."""
        tensor = self._tensor(name, (n, rows))
        if tensor.type is GGMLType.I32:
            found = np.frombuffer(tensor.data.tobytes(), dtype="<i4").reshape(rows, n).astype(np.int64)
            if not found.size or (found.min() >= 0 and found.max() < limit):
                return found
        raise UnsupportedModelError(
            f"tensor {tensor.name} is not a table of whole numbers (I32) from 0 to {limit - 1}; "
            "the file is damaged or not supported"
        )

    def values(self, name: str, n: int) -> np.ndarray:
        """A small float vector as an array, float64 [n]."""
        return _as_float32(self._tensor(name, (n,))).astype(np.float64)

    def _full(self, name: str) -> str:
        """A tensor's name in the file, with its ending; a few have none."""
        bare = name.endswith((".bias", ".weight")) or name in self._file.tensors
        return name if bare else f"{name}.weight"

    def _tensor(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        tensor = self._file.tensors.get(self._full(name))
        if tensor is None:
            raise UnsupportedModelError(
                f"the model has no tensor {self._full(name)}; the file is incomplete or not supported"
            )
        tensor.check_known()
        found = tuple(tensor.shape) + (1,) * (len(shape) - len(tensor.shape))
        while len(found) > len(shape) and found[-1] == 1:
            found = found[:-1]
        if found != shape and _without_ones(found) != _without_ones(shape):
            raise UnsupportedModelError(
                f"tensor {tensor.name} has the shape {list(tensor.shape)}, expected {list(shape)} "
                "after the file's metadata; the file is damaged or not supported"
            )
        self._read.add(tensor.name)
        return tensor


def _without_ones(shape: tuple[int, ...]) -> list[int]:
    """The longer axes: one of length 1 does not change where a value lies."""
    return [n for n in shape if n != 1]


def _as_float32(tensor: TensorInfo) -> np.ndarray:
    """A small tensor as float32, flat: a copy."""
    if tensor.type not in WEIGHT_TYPES:
        raise UnsupportedModelError(
            f"tensor {tensor.name} has the type {tensor.type.name}, which is not for weights; "
            "the file is damaged or not supported"
        )
    data = tensor.data
    if tensor.type is GGMLType.F64:
        return np.frombuffer(data.tobytes(), dtype="<f8").astype(np.float32)
    if tensor.type is GGMLType.F32:
        return np.frombuffer(data.tobytes(), dtype="<f4")
    if tensor.type is GGMLType.F16:
        return np.frombuffer(data.tobytes(), dtype="<f2").astype(np.float32)
    if tensor.type is GGMLType.BF16:
        return (np.frombuffer(data.tobytes(), dtype="<u2").astype(np.uint32) << 16).view(np.float32)
    return dequantize(data.reshape(-1, tensor.row_bytes), tensor.type).reshape(-1)
