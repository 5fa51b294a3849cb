"""What quantizing a file will do to each of its tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from llmgen.backends.cpu.kernels.quants import TABLE
from llmgen.errors import UnsupportedModelError, shown
from llmgen.gguf import GGMLType, GGUFFile, TensorInfo
from llmgen.gguf.dequantize import dequantize
from llmgen.quantize.mixes import Mix
from llmgen.quantize.rules import Shape, fitting, wanted_types

_INTEGERS = (GGMLType.I8, GGMLType.I16, GGMLType.I32, GGMLType.I64)
_FLOATS = (GGMLType.F64, GGMLType.F32, GGMLType.F16, GGMLType.BF16)


@dataclass(frozen=True)
class TensorPlan:
    """A tensor, the type it gets, and the type that the mix wants for it.

    ``factors``: what its weights are multiplied by first, float32 [1] or [experts]; None where nothing is.
    """

    tensor: TensorInfo
    type: GGMLType
    wanted: GGMLType
    factors: NDArray[np.float32] | None = field(default=None, compare=False)

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
    """All tensors of the new file, in the order of the old one."""

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
    planned = [_planned(tensor, wanted.get(tensor.name, tensor.type)) for tensor in tensors]
    return Plan(mix, tuple(_with_factors(planned, file)))


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


def _with_factors(planned: list[TensorPlan], file: GGUFFile) -> Iterator[TensorPlan]:
    """Have each matrix that leaves NVFP4 multiplied by its factor.

    The factor (``.scale``) is then left out, and so is the one of activations (``.input_scale``): of some
    matrices, such as the output, both count with NVFP4 only (``load_tensors`` in src/llama-model.cpp).
    """
    leaving = {p.tensor.name.removesuffix(".weight"): p for p in planned if _leaves_fp4(p)}
    dropped = {f"{stem}.{kind}" for stem in leaving for kind in ("scale", "input_scale")}
    for p in planned:
        factor = file.tensors.get(f"{p.tensor.name.removesuffix('.weight')}.scale")
        if _leaves_fp4(p) and factor is not None:
            p = replace(p, factors=_factors(p.tensor, factor))
        if p.tensor.name not in dropped:
            yield p


def _leaves_fp4(planned: TensorPlan) -> bool:
    return planned.changes and planned.tensor.type is GGMLType.NVFP4


def _factors(tensor: TensorInfo, factor: TensorInfo) -> NDArray[np.float32]:
    """The factors of a matrix, or of each expert's, float32 [1] or [experts]."""
    n_experts = tensor.shape[2] if len(tensor.shape) > 2 else 1
    if factor.type not in _FLOATS or factor.n_elements not in (1, n_experts):
        raise UnsupportedModelError(
            f"the tensor {shown(factor.name)} has {factor.n_elements:,} values in {factor.type.name}, expected "
            f"{n_experts:,} in F32, the factor of {shown(tensor.name)}; the model is damaged, get it again"
        )
    return dequantize(factor.data.reshape(1, -1), factor.type).reshape(-1)
