"""A cheap hash that tells models apart."""

from __future__ import annotations

import hashlib

import numpy as np

from llmgen.gguf import GGUFFile

_SAMPLE_BYTES = 256


def fingerprint(file: GGUFFile) -> str:
    """A hash of a model's hyperparameters, its tensors' names, types and shapes, and samples of each tensor.

    Fast for any size: it reads three small pieces of every tensor.
    """
    digest = hashlib.sha256()
    for key in sorted(file.metadata):
        if key.startswith(f"{file.architecture}."):
            value = file.metadata[key]
            text = value.tobytes().hex() if isinstance(value, np.ndarray) else repr(value)
            digest.update(f"{key}={text}\n".encode("utf-8", "replace"))
    for tensor in file.tensors.values():
        digest.update(f"{tensor.name} {tensor.type.name} {tensor.shape}\n".encode("utf-8", "replace"))
        middle = tensor.nbytes // 2
        for start in (0, middle, max(0, tensor.nbytes - _SAMPLE_BYTES)):
            digest.update(tensor.data[start : start + _SAMPLE_BYTES].tobytes())
    return digest.hexdigest()
