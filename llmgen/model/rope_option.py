"""--rope-scaling: how a user has positions beyond the trained context mapped into it, in place of the file's way."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from llmgen.errors import UsageError, shown

if TYPE_CHECKING:
    from llmgen.gguf import GGUFFile
    from llmgen.model.decoder import Decoder

    D = TypeVar("D", bound=Decoder)

MOST_FACTOR = 1024.0
_FORMS = "yarn:N, linear:N or none"


@dataclass(frozen=True)
class RopeOption:
    """A scaling (``model.rope.RopeScaling``): its kind, and by what number positions are divided."""

    kind: str
    factor: float = 1.0

    @classmethod
    def of(cls, text: object) -> RopeOption:
        """The option that ``yarn:4``, ``linear:2`` or ``none`` stands for.  Raises UsageError for anything else."""
        if text == "none":
            return cls("none")
        kind, _, number = text.partition(":") if isinstance(text, str) else ("", "", "")
        try:
            factor = float(number)
        except ValueError:
            factor = math.nan
        if kind not in ("yarn", "linear") or not 1 <= factor <= MOST_FACTOR:
            raise UsageError(
                f"rope_scaling is {shown(text)}, expected {_FORMS}, where N, from 1 to {MOST_FACTOR:g}, says how many "
                "times the trained context is reached (--rope-scaling)"
            )
        return cls(kind, factor)


def stretched(config: D, option: str | None, file: GGUFFile) -> D:
    """The model with the scaling that an option asks for; without an option, as it is.

    Raises UsageError for an option that is not understood, and where the file has scaled its positions in a
    way that cannot be combined with one.
    """
    if option is None:
        return config
    asked = RopeOption.of(option)
    scaling = config.rope_scaling
    if has_own_factors(config, file):
        raise UsageError(
            f"this model stretches its positions by factors of its own (LongRoPE), and {shown(option)} was asked for; "
            "leave --rope-scaling out"
        )
    scaling = replace(scaling, kind=asked.kind, factor=asked.factor, extrapolation=1.0, asked=True)
    return replace(config, rope_scaling=scaling)


def has_own_factors(config: Decoder, file: GGUFFile) -> bool:
    """Whether the file has LongRoPE's factors, in whose place no other scaling can be asked for."""
    return config.rope_scaling.kind == "longrope" or "rope_factors_long.weight" in file.tensors


def check_stretchable(config: Decoder, stretchable: bool) -> None:
    """Raises UsageError for a scaling that was asked for where it changes no layer."""
    if config.rope_scaling.asked and not stretchable:
        raise UsageError(
            f"{config.architecture} models have no rotated positions that a scaling would change; "
            "leave --rope-scaling out"
        )
