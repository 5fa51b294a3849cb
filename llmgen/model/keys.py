"""Checked access to the metadata of one architecture.

The meaning of the keys follows llama.cpp's loader (src/llama-model.cpp, src/llama-hparams.h).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from llmgen.errors import UnsupportedModelError, shown
from llmgen.gguf import GGUFFile

MAX_WIDTH = 1 << 20
MAX_LAYERS = 4096
MAX_HEADS = 1 << 16
MAX_CONTEXT = 1 << 27
MAX_FEED_FORWARD = 1 << 24


class Keys:
    """The metadata below ``architecture.``; every value is checked where it is read.

    The methods raise UnsupportedModelError for a value that no model can have.
    """

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.architecture = file.architecture or ""

    def get(self, key: str) -> Any:
        """The value as the file has it: a number, a string, an array of any kind, or None."""
        return self.file.metadata.get(f"{self.architecture}.{key}")

    def fail(self, key: str, found: object, expected: str) -> UnsupportedModelError:
        """The error for a value that is ``found`` where another was ``expected``, both in words."""
        return UnsupportedModelError(
            f"{shown(self.architecture, quote=False)}.{key} is {found}, expected {expected}; "
            "the model file is damaged or not supported"
        )

    def refuse(self, key: str, expected: str) -> UnsupportedModelError:
        """``fail`` with the value that the file has."""
        return self.fail(key, _found(self.get(key)), expected)

    def whole(self, key: str, default: int | None = None, low: int = 1, high: int = MAX_WIDTH) -> int:
        """An integer in [low, high]; an array of equal values counts as one."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, np.ndarray) and value.size and np.all(value == value.flat[0]):
            value = value.flat[0].item()
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.fail(key, _found(value), f"a whole number from {low} to {high}")
        return value

    def per_layer(
        self, key: str, n_layers: int, default: int | None = None, low: int = 0, high: int = MAX_WIDTH
    ) -> tuple[int, ...]:
        """An integer for each layer: an array of them, or one number for all."""
        value = self.get(key)
        if not isinstance(value, np.ndarray):
            return (self.whole(key, default, low, high),) * n_layers
        if value.dtype.kind not in "biu" or len(value) < n_layers:
            raise self.refuse(key, f"a whole number for each of {n_layers} layers")
        numbers = tuple(int(n) for n in value[:n_layers])
        if not all(low <= n <= high for n in numbers):
            raise self.refuse(key, f"whole numbers from {low} to {high}")
        return numbers

    def real(self, key: str, default: float | None = None, low: float = 0.0, high: float = math.inf) -> float:
        """A finite number in [low, high]."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not (math.isfinite(value) and low <= value <= high)
        ):
            raise self.fail(key, _found(value), f"a finite number {_bounds(low, high)}")
        return float(value)

    def per_layer_real(
        self, key: str, n_layers: int, default: float | None = None, low: float = 0.0, high: float = math.inf
    ) -> tuple[float, ...]:
        """A finite number in [low, high] for each layer: an array of them, or one number for all."""
        value = self.get(key)
        if not isinstance(value, np.ndarray):
            return (self.real(key, default, low, high),) * n_layers
        if value.dtype.kind != "f" or len(value) < n_layers:
            raise self.refuse(key, f"a number for each of {n_layers} layers")
        numbers = tuple(float(n) for n in value[:n_layers])
        if not all(math.isfinite(n) and low <= n <= high for n in numbers):
            raise self.refuse(key, f"finite numbers {_bounds(low, high)}")
        return numbers

    def choice(self, key: str, options: tuple[str, ...], default: str) -> str:
        """One of the given words; missing or empty: the default."""
        value = self.get(key)
        if value is None or (isinstance(value, str) and not value):
            return default
        if not isinstance(value, str) or value not in options:
            raise self.fail(key, _found(value), f"{', '.join(options[:-1])} or {options[-1]}")
        return value

    def every_nth(self, key: str, n_layers: int, period: int, first: bool = False) -> tuple[bool, ...]:
        """A flag for each layer; without one each ``period``-th layer is False, the others are True.

        first: the first layer of a period, not the last.  The file may give a flag for each
        layer, or another period (0: all True).
        """
        value = self.get(key)
        if isinstance(value, np.ndarray) and value.dtype.kind in "biu":
            if len(value) != n_layers:
                raise self.fail(key, f"{len(value)} flags", f"one for each of {n_layers} layers")
            return tuple(value.astype(bool).tolist())
        if value is not None:
            period = self.whole(key, low=0, high=MAX_LAYERS)
        odd_one = 0 if first else period - 1
        return tuple(period == 0 or layer % period != odd_one for layer in range(n_layers))

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Whether something is so."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, bool):
            raise self.fail(key, _found(value), "true or false")
        return value

    def name(self) -> str:
        """The model's own name, or nothing."""
        name = self.file.metadata.get("general.name")
        return name if isinstance(name, str) else ""

    def vocab_size(self) -> int:
        """Rows of the embedding: one for each token, and perhaps more that no text produces."""
        tensors = self.file.tensors
        embedding = tensors.get("token_embd.weight") or tensors.get("output.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise UnsupportedModelError(
                f"{self.file.path} has no token_embd.weight matrix, so it has no weights to run; choose another file"
            )
        tokens = self.file.metadata.get("tokenizer.ggml.tokens")
        if isinstance(tokens, Sequence) and len(tokens) > embedding.shape[1]:
            raise UnsupportedModelError(
                f"token_embd.weight has {embedding.shape[1]} rows, expected one for each of the {len(tokens)} "
                "tokens of the vocabulary; the file is damaged, download it again"
            )
        return embedding.shape[1]


def _bounds(low: float, high: float) -> str:
    """The bounds of a number in words."""
    return f"of at least {low:g}" if math.isinf(high) else f"from {low:g} to {high:g}"


def _found(value: object) -> str:
    """A value of the file in a message."""
    return "missing" if value is None else shown(value)
