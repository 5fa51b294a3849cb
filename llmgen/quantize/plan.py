"""What quantizing a file will do to each of its tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llmgen.backends.cpu.kernels.quants import TABLE
from llmgen.errors import UnsupportedModelError, shown
from llmgen.gguf import GGMLType, GGUFFile, TensorInfo
from llmgen.quantize.mixes import Mix
from llmgen.quantize.rules import Shape, fitting, wanted_types

_INTEGERS = (GGMLType.I8, GGMLType.I16, GGMLType.I32, GGMLType.I64)
_FLOATS = (GGMLType.F64, GGMLType.F32, GGMLType.F16, GGMLType.BF16)


@dataclass(frozen=True)
class TensorPlan:
    """A tensor, the type it gets, and the type that the mix wants for it."""

    tensor: TensorInfo
    type: GGMLType
    wanted: GGMLType

    @property
    def changes(self) -> bool:
        """Whether its type changes; otherwise its bytes are copied."""
        return self.type is not self.tensor.type

    @property
    def fell_back(self) -> bool:
        """Whether its rows are not whole blocks of the wanted type."""
        return self.type is not self.wanted

    @property
    def is_requantized(self) -> bool:
        """Whether it has lost bits already, and will lose some again."""
        return self.changes and self.tensor.type not in _FLOATS and self.type not in _FLOATS

    @property
    def nbytes(self) -> int:
        return self.type.bytes_for(self.tensor.n_elements)


@dataclass(frozen=True)
class Plan:
    """All tensors of a file, in its order."""

    mix: Mix
    tensors: tuple[TensorPlan, ...]

    def __iter__(self) -> Iterator[TensorPlan]:
        return iter(self.tensors)

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors in their new types."""
        return sum(t.nbytes for t in self)

    def share(self, chosen: list[TensorPlan]) -> float:
        """The part of all weights that some tensors have."""
        return sum(t.tensor.n_elements for t in chosen) / max(1, sum(t.tensor.n_elements for t in self))


def plan(file: GGUFFile, mix: Mix) -> Plan:
    """Choose each tensor's type.  Raises UnsupportedModelError for a tensor that cannot be converted."""
    tensors = list(file.tensors.values())
    if not tensors:
        raise UnsupportedModelError(
            f"{shown(str(file.path), quote=False)} has no tensors, so there is nothing to quantize; "
            "name a file with a model's weights"
        )
    wanted = wanted_types(mix, tensors, Shape.of(file))
    return Plan(mix, tuple(_planned(tensor, wanted.get(tensor.name, tensor.type)) for tensor in tensors))


def _planned(tensor: TensorInfo, wanted: GGMLType) -> TensorPlan:
    tensor.check_known()
    if tensor.type in _INTEGERS:
        wanted = tensor.type  # a table of ids, not weights
    kind = fitting(wanted, tensor.shape[0]) if wanted is not tensor.type else wanted
    if kind is not tensor.type and tensor.type.name.lower() not in TABLE:
        raise UnsupportedModelError(
            f"the tensor {shown(tensor.name)} has the type {tensor.type.name}, which cannot be converted; "
            "start from a file in another type"
        )
    return TensorPlan(tensor, kind, wanted)
