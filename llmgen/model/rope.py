"""Tables of rotary position embeddings, filled as far as a run needs them.

Su et al., arXiv:2104.09864; the scalings: linear (arXiv:2306.15595), YaRN
(arXiv:2309.00071), LongRoPE's factors per frequency (arXiv:2402.13753).
"""

from __future__ import annotations

import math

import numpy as np

from llmgen.backends.cpu.memory import Arena
from llmgen.errors import UnsupportedModelError
from llmgen.model.config import RopeScaling

_STEP = 256  # positions added at a time


class RopeTable:
    """Cosines and signed sines for every position up to n_ctx, float32 [n_ctx][2][n_rot].

    neox: pairs (i, i + n_rot / 2), else (2i, 2i + 1).  ``factors`` divides the
    frequencies, float64 [n_rot / 2].
    """

    def __init__(
        self,
        n_ctx: int,
        n_rot: int,
        base: float,
        neox: bool,
        scaling: RopeScaling | None = None,
        factors: np.ndarray | None = None,
    ) -> None:
        self.n_rot, self.neox = n_rot, neox
        self._filled = 0
        self._n_ctx = n_ctx
        self._memory = Arena(max(4, n_ctx * n_rot * 8), "the table of rotary positions")
        self._table = self._memory.data.view(np.float32)[: n_ctx * 2 * n_rot].reshape(n_ctx, 2, n_rot)
        self.address = self._table.ctypes.data if n_rot and n_ctx else 0
        self._frequencies, self._magnitude = _checked(n_rot, base, scaling or RopeScaling(), factors)

    def fill(self, length: int) -> None:
        """Make the rows of positions 0 .. length - 1 valid."""
        while self._filled < length and self.n_rot:
            last = min(self._filled + _STEP, self._n_ctx)
            angles = np.outer(np.arange(self._filled, last), self._frequencies)
            cosines, sines = np.cos(angles) * self._magnitude, np.sin(angles) * self._magnitude
            rows = self._table[self._filled : last]
            if self.neox:
                half = self.n_rot // 2
                rows[:, 0, :half], rows[:, 0, half:] = cosines, cosines
                rows[:, 1, :half], rows[:, 1, half:] = -sines, sines
            else:
                rows[:, 0, 0::2], rows[:, 0, 1::2] = cosines, cosines
                rows[:, 1, 0::2], rows[:, 1, 1::2] = -sines, sines
            self._filled = last


def _checked(
    n_rot: int, base: float, scaling: RopeScaling, factors: np.ndarray | None
) -> tuple[np.ndarray, float]:
    """The result of ``_frequencies``, or UnsupportedModelError for settings from which none follows."""
    try:
        with np.errstate(all="ignore"):
            frequencies, magnitude = _frequencies(n_rot, base, scaling, factors)
        if np.isfinite(frequencies).all() and math.isfinite(magnitude):
            return frequencies, magnitude
    except (ArithmeticError, ValueError):
        pass
    raise UnsupportedModelError(
        f"no rotary positions follow from the rope.freq_base {base:g}, a {scaling.kind} scaling of "
        f"{scaling.factor:g} and the factors in this file; it is damaged, download it again"
    )


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
    ramp = _yarn_ramp(n_rot, base, scaling)
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
