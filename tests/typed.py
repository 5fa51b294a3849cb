"""How type checkers read the public names: mypy checks this file, nothing runs it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import assert_type

import numpy as np

from llmgen import LLM, GenerationEvent, GenerationResult, SamplingParams


def options(id: np.int64) -> None:
    params = SamplingParams(stop="x", logit_bias={5: 1.0, "a": -1.0}, banned_tokens="b", stop_token_ids=[id])
    SamplingParams(stop=["x"], logit_bias={id: 1.0}, banned_tokens=[id, "b"], samplers="top_k;temperature")
    assert_type(params.stop, tuple[str, ...])
    assert_type(params.logit_bias, tuple[tuple[int | str, float], ...])
    assert_type(params.stop_token_ids, tuple[int, ...])
    SamplingParams(stop=5)  # type: ignore[arg-type]
    LLM("m.gguf", kv_type="f8")  # type: ignore[arg-type]


def one_or_many(llm: LLM, either: str | list[str], ids: list[int], row: np.ndarray) -> None:
    assert_type(llm.generate("a"), GenerationResult)
    assert_type(llm.generate(ids), GenerationResult)
    assert_type(llm.generate((1, 2)), GenerationResult)
    assert_type(llm.generate(row), GenerationResult)
    assert_type(llm.generate(["a", "b"]), list[GenerationResult])
    assert_type(llm.generate([ids, ids]), list[GenerationResult])
    assert_type(llm.generate(("a", ids)), list[GenerationResult])
    assert_type(llm.generate(either), GenerationResult | list[GenerationResult])
    assert_type(llm.astream("a"), AsyncGenerator[GenerationEvent, None])
