"""The slow, obviously correct twins: the numpy backend over a file, and formulas of single kernels."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from llmgen.backends.numpy import NumpyModel, Precision
from llmgen.gguf import GGUFFile


def nmse(a: Any, b: Any) -> float:
    """Normalized mean squared error of a against the reference b."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(np.sum((a - b) ** 2) / np.sum(b * b))


def logits(
    path: str | os.PathLike[str], tokens: Any, n_past: int = 0, *, n_ctx: int | None = None, **precision: Any
) -> np.ndarray:
    """float32 [len(tokens) - n_past, vocab]: the logits after each token from the n_past-th on.

    precision: the fields of ``Precision``.
    """
    with GGUFFile.open(path) as file:
        return NumpyModel(file, n_ctx, Precision(**precision)).logits(np.asarray(tokens), n_past)
