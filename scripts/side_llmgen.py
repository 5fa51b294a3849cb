"""Our side of scripts/compare.py."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import version
from typing import Any

import numpy as np
from side import serve

import llmgen
from llmgen.backends.cpu.model import Model
from llmgen.gguf import GGUFFile


class Ours:
    """The engine behind the commands; its only variant is 'default'."""

    def __init__(self, options: dict[str, Any]) -> None:
        if options["level"]:
            os.environ["LLMGEN_KERNEL_LEVEL"] = options["level"]
        file = GGUFFile.open(options["model"])
        self._model = Model.load(file, n_ctx=options["n_ctx"], n_threads=options["threads"], kv_type="f16")
        self._model.move_weights()
        self._sequence = self._model.new_sequence()
        self._filled = 0  # tokens at the start of the cache that a prefix put there
        self._last: np.ndarray | None = None

    def facts(self) -> dict[str, Any]:
        return {
            "version": llmgen.__version__,
            "python": platform.python_version(),
            "numba": version("numba"),
            "kernel_level": self._model.kernel_level,
            "n_threads": self._model.n_threads,
            "kv_type": self._model.kv_type,
        }

    def fill(self, variant: str, prefix: list[int]) -> None:
        n = len(prefix)
        if 0 < n == self._filled and self._sequence.cut_point(n) == n:
            self._sequence.truncate(n)
            return
        self._sequence.clear()
        self._filled = n
        if n:
            self._model.prefill(self._sequence, prefix, logits="none")

    def prompt(self, variant: str, ids: list[int]) -> None:
        self._last = self._model.prefill(self._sequence, ids, logits="last")

    def generate(self, variant: str, ids: list[int]) -> float:
        model, sequence = self._model, self._sequence
        started = time.perf_counter()
        for token in ids:
            row = model.decode([sequence], [token])
        seconds = time.perf_counter() - started
        self._last = row[0]
        return seconds

    def last_logits(self, variant: str) -> np.ndarray:
        assert self._last is not None
        return self._last.copy()


if __name__ == "__main__":
    serve(Ours)
