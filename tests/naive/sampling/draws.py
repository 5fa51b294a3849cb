"""The sampler's draws for many steps at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmgen.sampling.rng import LANE_TOKEN, philox4x32

_MASK = 0xFFFFFFFF


def uniforms(seed: int, steps: NDArray[np.uint64], lane: int = LANE_TOKEN) -> NDArray[np.float64]:
    """``rng.uniform`` for many steps: uint64 [n] -> float64 [n]."""
    zero = np.zeros_like(steps)
    counter = (steps & _MASK, steps >> np.uint64(32), zero + np.uint64(lane), zero)
    a, b, _, _ = philox4x32(counter, (seed & _MASK, (seed >> 32) & _MASK))
    return ((a << np.uint64(21)) | (b >> np.uint64(11))).astype(np.float64) * 2.0**-53
