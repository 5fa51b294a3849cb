"""Engines over the tiny test models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from llmgen.backends.cpu.model import Model
from llmgen.gguf import GGUFFile
from llmgen.model.decode_config import DecodeConfig
from llmgen.model.kv_config import KVCacheConfig


@contextmanager
def engine(
    path: Path,
    *,
    n_threads: int = 1,
    kv_type: str | KVCacheConfig = "f32",
    n_ctx: int = 256,
    rope_scaling: str | None = None,
    decode_plan: str | DecodeConfig = "auto",
) -> Iterator[Model]:
    """A loaded model, closed at the end together with its file."""
    with GGUFFile.open(path) as file:
        model = Model.load(
            *(file, n_ctx, n_threads, kv_type), rope_scaling=rope_scaling, decode_plan=decode_plan
        )
        try:
            yield model
        finally:
            model.close()


def in_chunks(model: Model, seq: Any, ids: Iterable[int], sizes: Iterable[int]) -> np.ndarray:
    """Logits [n, vocab] of a prompt fed in pieces: the sizes in turn, the last piece takes the rest."""
    ids, rows, start = [int(i) for i in ids], [], 0
    for size in sizes:
        rows.append(model.prefill(seq, ids[start : start + size], logits="all"))
        start += size
    if start < len(ids):
        rows.append(model.prefill(seq, ids[start:], logits="all"))
    return np.concatenate(rows)


def one_by_one(model: Model, seq: Any, ids: Iterable[int]) -> np.ndarray:
    """Logits [n, vocab] of tokens fed one at a time in the role of generated tokens."""
    return np.concatenate([model.decode([seq], [int(i)]).copy() for i in ids])
