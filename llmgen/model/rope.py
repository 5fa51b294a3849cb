"""Rotary position embeddings: by which angle each pair of values turns at a position.

Su et al., arXiv:2104.09864; the scalings: linear (arXiv:2306.15595), YaRN
(arXiv:2309.00071), LongRoPE's factors per frequency (arXiv:2402.13753).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmgen.errors import UnsupportedModelError
from llmgen.model.keys import MAX_CONTEXT, Keys


@dataclass(frozen=True)
class RopeScaling:
    """How positions beyond the trained context are mapped into it."""

    kind: str = "none"  # none, linear, yarn, longrope
    factor: float = 1.0  # positions are divided by it
    original_context: int = 0  # 0: a rotation that the file's scaling does not reach
    attention_factor: float = 1.0  # multiplies cosines and sines
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    log_multiplier: float = 0.0
    extrapolation: float = 1.0
    """YaRN: how much of the ramp counts; 0: positions are divided for all pairs alike."""
    asked: bool = False
    """Whether the user has asked for it (model/rope_option.py)."""

    def __str__(self) -> str:
        """The scaling as --rope-scaling names it."""
        if self.kind == "longrope":
            return self.kind
        return f"{self.kind}:{self.factor:g}" if self.factor != 1 else "none"

    @classmethod
    def read(cls, keys: Keys, context_length: int, ramp: bool = False) -> RopeScaling:
        """The scaling that the metadata name; ``ramp``: whether the architecture lets the file set YaRN's ramp."""
        kind = keys.choice("rope.scaling.type", ("none", "linear", "yarn", "longrope"), "linear")
        factor = keys.real("rope.scaling.factor", keys.real("rope.scale_linear", 0.0)) or 1.0
        return cls(
            kind=kind,
            factor=1.0 if kind == "none" else factor,
            original_context=keys.whole("rope.scaling.original_context_length", 0, 0, MAX_CONTEXT)
            or context_length,
            attention_factor=keys.real("rope.scaling.attn_factor", 1.0),
            beta_fast=keys.real("rope.scaling.yarn_beta_fast", 32.0) if ramp else 32.0,
            beta_slow=keys.real("rope.scaling.yarn_beta_slow", 1.0) if ramp else 1.0,
            log_multiplier=keys.real("rope.scaling.yarn_log_multiplier", 0.0) if ramp else 0.0,
        )

    def unstretched(self) -> RopeScaling:
        """For layers whose positions are not scaled; the file's factor on cosines and sines stays."""
        return RopeScaling(attention_factor=self.attention_factor)


@dataclass(frozen=True, eq=False)
class Rope:
    """The rotation of one kind of layer.

    neox: pairs are (i, i + n_rot / 2), otherwise (2i, 2i + 1).  frequencies: angle per
    position of each pair, float64 [n_rot / 2].  magnitude multiplies cosines and sines.
    first: values of a head before the n_rot that are rotated.
    stretchable: another scaling would change it.
    """

    n_rot: int
    neox: bool
    frequencies: np.ndarray
    magnitude: float = 1.0
    first: int = 0
    stretchable: bool = False

    @classmethod
    def of(
        cls,
        n_rot: int,
        base: float,
        neox: bool,
        scaling: RopeScaling | None = None,
        factors: np.ndarray | None = None,
    ) -> Rope:
        """A rotation with these hyperparameters; ``factors`` divides the frequencies, float64 [n_rot / 2].

        Raises UnsupportedModelError for settings from which no finite angles follow.
        """
        scaling = scaling or RopeScaling()
        try:
            with np.errstate(all="ignore"):
                frequencies, magnitude = _frequencies(n_rot, base, scaling, factors)
            if np.isfinite(frequencies).all() and math.isfinite(magnitude):
                stretchable = scaling.original_context > 0
                return cls(n_rot, neox, frequencies, magnitude, stretchable=stretchable)
        except (ArithmeticError, ValueError):
            pass
        raise UnsupportedModelError(
            f"no rotary positions follow from the rope.freq_base {base:g}, a {scaling.kind} scaling of "
            f"{scaling.factor:g} and the factors in this file; it is damaged, download it again"
        )

    def rows(self, first: int, last: int, dtype: Any = np.float32) -> np.ndarray:
        """Cosines and signed sines of positions first .. last - 1, [last - first, 2, n_rot].

        Value i of a head becomes cosine i times itself plus sine i times its partner.
        """
        angles = np.outer(np.arange(first, last), self.frequencies)
        cosines, sines = np.cos(angles) * self.magnitude, np.sin(angles) * self.magnitude
        rows = np.empty((last - first, 2, self.n_rot), dtype)
        if self.neox:
            half = self.n_rot // 2
            rows[:, 0, :half], rows[:, 0, half:] = cosines, cosines
            rows[:, 1, :half], rows[:, 1, half:] = -sines, sines
        else:
            rows[:, 0, 0::2], rows[:, 0, 1::2] = cosines, cosines
            rows[:, 1, 0::2], rows[:, 1, 1::2] = -sines, sines
        return rows


NOPE = Rope(0, True, np.empty(0))
"""No rotation: what positions a layer knows come from elsewhere."""


def _frequencies(
    n_rot: int, base: float, scaling: RopeScaling, factors: np.ndarray | None
) -> tuple[np.ndarray, float]:
    """Angle per position of each pair, float64 [n_rot / 2], and the factor on cosines and sines."""
    exponents = np.arange(0, n_rot, 2) / max(n_rot, 1)
    plain = base**-exponents
    if factors is not None:
        plain = plain / factors
    if scaling.kind != "yarn":
        return plain / scaling.factor, scaling.attention_factor
    ramp = _yarn_ramp(n_rot, base, scaling) * scaling.extrapolation
    frequencies = plain / scaling.factor * (1 - ramp) + plain * ramp
    return frequencies, scaling.attention_factor * _yarn_magnitude(scaling)


def _yarn_ramp(n_rot: int, base: float, scaling: RopeScaling) -> np.ndarray:
    """1 for pairs that turn often within the original context (kept), 0 for slow ones (interpolated)."""

    def pair(turns: float) -> float:
        return n_rot * math.log(scaling.original_context / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(0.0, math.floor(pair(scaling.beta_fast)))
    high = min(n_rot - 1.0, math.ceil(pair(scaling.beta_slow)))
    return 1 - np.clip((np.arange(n_rot // 2) - low) / max(0.001, high - low), 0, 1)


def _yarn_magnitude(scaling: RopeScaling) -> float:
    def magnitude(multiplier: float) -> float:
        return 1.0 if scaling.factor <= 1 else 0.1 * multiplier * math.log(scaling.factor) + 1.0

    if scaling.log_multiplier == 0:
        return magnitude(1.0)
    return magnitude(1.0) / magnitude(scaling.log_multiplier)
