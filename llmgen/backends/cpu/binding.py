"""The addresses of a model's weights: in the memory map, or of copies.

The handles of ``model.weights`` become addresses here, once for all programs of a model.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from llmgen.backends.cpu.kernels.quants import TABLE, QuantType
from llmgen.backends.cpu.rope_table import RopeTable
from llmgen.errors import UnsupportedModelError
from llmgen.gguf import GGMLType
from llmgen.model.rope import Rope
from llmgen.model.weights import Matrix, Vector


@dataclass(frozen=True)
class BoundMatrix:
    """A weight matrix [n_rows, n_cols] as it lies in the file.

    Kernels may read a few bytes behind the row they work on.  Behind the last row of
    a file there may be nothing: ``copied_row`` (or -1) is then read at ``copy_address``,
    a copy with room behind it.
    """

    address: int
    n_rows: int
    n_cols: int
    row_bytes: int  # from one row to the next
    kernels: QuantType
    copied_row: int = -1
    copy_address: int = 0

    @property
    def arguments(self) -> dict[str, int]:
        """Where the matrix lies: arguments under the names that the kernels' tables have for them."""
        return {
            "weights": self.address,
            "row_bytes": self.row_bytes,
            "copied_row": self.copied_row,
            "copy_address": self.copy_address,
        }


class Binding:
    """The addresses of a model's weights, and the copies that live as long as the model."""

    def __init__(self, n_ctx: int) -> None:
        self.n_ctx = n_ctx
        self.stretchable = False
        """Whether a scaling of positions changes the rotation of any layer."""
        self._copies: list[np.ndarray] = []
        self._tails: dict[str, int] = {}  # tensor name -> address of a copy of its last row, or of all rows
        self._vectors: dict[Vector, int] = {}
        self._tables: dict[tuple[int, bool, float, bytes], RopeTable] = {}

    def matrix(self, m: Matrix) -> BoundMatrix:
        """Raises UnsupportedModelError for a type that no kernel multiplies by."""
        tensor = m.tensor
        kernels = TABLE.get(tensor.type.name.lower())
        if kernels is None:
            supported = ", ".join(key.upper() for key in TABLE)
            raise UnsupportedModelError(
                f"tensor {tensor.name} has the type {tensor.type.name}, which llmgen cannot multiply by; "
                f"use a file whose tensors are of the types {supported}"
            )
        address, copied_row, copy_address = tensor.address, -1, 0
        if tensor.slack < kernels.read_past:
            short = tensor.row_bytes < kernels.read_past  # the room behind is longer than a row
            copy = self._tail(m, tensor.nbytes if short else tensor.row_bytes, kernels.read_past)
            if short:
                address = copy
            else:
                last = tensor.nbytes // tensor.row_bytes - 1 - m.first_row
                copied_row, copy_address = (last if 0 <= last < m.n_rows else -1), copy
        address += m.first_row * tensor.row_bytes
        return BoundMatrix(address, m.n_rows, m.n_cols, tensor.row_bytes, kernels, copied_row, copy_address)

    def _tail(self, m: Matrix, nbytes: int, room: int) -> int:
        """The address of a copy of a tensor's last ``nbytes`` bytes, with room behind them."""
        if m.name not in self._tails:
            copy = np.zeros(nbytes + room + 64, dtype=np.uint8)
            copy[:nbytes] = m.tensor.data[-nbytes:]
            self._tails[m.name] = self.keep(copy)
        return self._tails[m.name]

    def float_rows(self, m: Matrix) -> int:
        """The address of a matrix whose values are used as they are.

        Raises UnsupportedModelError for another type than F32.
        """
        if m.tensor.type is not GGMLType.F32:
            raise UnsupportedModelError(
                f"tensor {m.name} has the type {m.tensor.type.name}, expected F32 for the biases of experts"
            )
        return m.tensor.address + m.first_row * m.tensor.row_bytes

    def vector(self, v: Vector) -> int:
        """The address of a copy, padded with zeros to whole vectors of 16 values."""
        if v not in self._vectors:
            copy = np.zeros(-(-v.values.size // 16) * 16 + 16, dtype=np.float32)
            copy[: v.values.size] = v.values.reshape(-1)
            self._vectors[v] = self.keep(copy)
        return self._vectors[v]

    def rope(self, rope: Rope) -> RopeTable:
        """The table of a rotation; equal rotations share one."""
        self.stretchable = self.stretchable or (rope.stretchable and rope.n_rot > 0)
        key = (rope.n_rot, rope.neox, rope.magnitude, rope.frequencies.tobytes())
        if key not in self._tables:
            self._tables[key] = RopeTable(rope, self.n_ctx)
        return self._tables[key]

    def rotations(self) -> str:
        """A hash of all rotations: two runs with the same one rotate a position's keys by the same angles."""
        digest = hashlib.sha256()
        for key in sorted(self._tables):
            digest.update(repr(key).encode())
        return digest.hexdigest()

    def fill_rope(self, length: int) -> None:
        """Make the tables valid for positions 0 .. length - 1."""
        for table in self._tables.values():
            table.fill(length)

    def keep(self, values: np.ndarray) -> int:
        """The address of an array, which stays alive as long as this object."""
        self._copies.append(values)
        return int(values.ctypes.data)
