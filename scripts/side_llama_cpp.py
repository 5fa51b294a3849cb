"""llama.cpp's side of scripts/compare.py, through llama-cpp-python's low-level functions.

It has two variants, flash attention off and on: two contexts over one loaded model.
"""

from __future__ import annotations

import platform
import time
from typing import Any

import llama_cpp as api
import numpy as np
from side import serve

BATCH = 512  # tokens of one llama_decode and of one ubatch: llama.cpp's own default
F16 = 1  # ggml_type, both for keys and for values


@api.llama_log_callback
def _silent(level: int, text: bytes, data: Any) -> None:
    pass


class _Context:
    """One llama_context, and what is in its cache."""

    def __init__(self, model: Any, options: dict[str, Any], flash: int) -> None:
        self._model = model
        params = api.llama_context_default_params()
        params.n_ctx = options["n_ctx"]
        params.n_batch = params.n_ubatch = BATCH
        params.n_threads = params.n_threads_batch = options["threads"]
        params.type_k = params.type_v = F16
        params.flash_attn_type = flash
        # as in llama.cpp's own programs: a layer with a sliding window keeps only that
        params.swa_full = False
        params.no_perf = True
        self.handle = api.llama_init_from_model(model, params)
        if not self.handle:
            raise RuntimeError(f"llama.cpp made no context with flash attention {flash}")
        self._memory = api.llama_get_memory(self.handle)
        self._filled = 0

    def fill(self, prefix: list[int]) -> None:
        n = len(prefix)
        if 0 < n == self._filled and self._cut(n):
            return
        api.llama_memory_clear(self._memory, True)
        self._filled = n
        if n:
            self.run(_batches(prefix, BATCH))

    def _cut(self, n: int) -> bool:
        """Cut the cache back to n tokens; False where a window no longer has the keys before them."""
        window = api.llama_model_n_swa(self._model) or n
        if api.llama_memory_seq_pos_min(self._memory, 0) > max(0, n - window):
            return False
        return bool(api.llama_memory_seq_rm(self._memory, 0, n, -1))

    def run(self, batches: list[tuple[Any, Any]]) -> float:
        """Decode the batches one after the other, with the logits of each one's last token; seconds."""
        started = time.perf_counter()
        for _, batch in batches:
            if api.llama_decode(self.handle, batch) != 0:
                raise RuntimeError("llama_decode failed")
            api.llama_get_logits_ith(self.handle, -1)  # waits for the result
        return time.perf_counter() - started


def _batches(ids: list[int], size: int) -> list[tuple[Any, Any]]:
    """The ids in batches of ``size``, each with the array that it points to."""
    arrays = [(api.llama_token * len(part))(*part) for part in _parts(ids, size)]
    return [(array, api.llama_batch_get_one(array, len(array))) for array in arrays]


def _parts(ids: list[int], size: int) -> list[list[int]]:
    return [ids[at : at + size] for at in range(0, len(ids), size)]


class LlamaCpp:
    """The engine behind the commands."""

    def __init__(self, options: dict[str, Any]) -> None:
        api.llama_log_set(_silent, None)
        api.llama_backend_init()
        params = api.llama_model_default_params()
        params.n_gpu_layers = 0
        model = api.llama_model_load_from_file(options["model"].encode(), params)
        if not model:
            raise RuntimeError(f"llama.cpp cannot load {options['model']}")
        self._contexts = {"flash off": _Context(model, options, 0), "flash on": _Context(model, options, 1)}
        self._n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))

    def facts(self) -> dict[str, Any]:
        handle = self._contexts["flash off"].handle
        return {
            "llama_cpp_python": api.__version__,
            "python": platform.python_version(),
            "system_info": api.llama_print_system_info().decode().strip(),
            "n_threads": api.llama_n_threads(handle),
            "n_threads_batch": api.llama_n_threads_batch(handle),
            "n_batch": api.llama_n_batch(handle),
            "n_ubatch": api.llama_n_ubatch(handle),
            "kv_type": "f16",
            "n_vocab": self._n_vocab,
        }

    def fill(self, variant: str, prefix: list[int]) -> None:
        self._contexts[variant].fill(prefix)

    def prompt(self, variant: str, ids: list[int]) -> None:
        self._contexts[variant].run(_batches(ids, BATCH))

    def generate(self, variant: str, ids: list[int]) -> float:
        return self._contexts[variant].run(_batches(ids, 1))

    def last_logits(self, variant: str) -> np.ndarray:
        row = api.llama_get_logits_ith(self._contexts[variant].handle, -1)
        return np.ctypeslib.as_array(row, shape=(self._n_vocab,)).copy()


if __name__ == "__main__":
    serve(LlamaCpp)
