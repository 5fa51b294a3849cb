"""A model file that is written to while it is in use: whatever is computed from then on is not trusted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import tiny
from llmgen import LLM, LLMGenError, SamplingParams
from llmgen.engine import Request
from llmgen.engine.perplexity import measure, windows

PARAMS = SamplingParams(temp=0, max_tokens=4, ignore_eos=True)
CHANGED = "m.gguf.* changed while it was in use"


def write_into(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\0\0\0\0")


def test_a_file_that_is_written_to(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "m.gguf")
    with LLM(path, n_ctx=64, n_threads=1) as llm, llm.session() as session:
        stream = session.stream([5, 6], PARAMS)
        next(stream)
        write_into(path)
        with pytest.raises(LLMGenError, match=CHANGED):
            list(stream)
        assert stream.result is not None
        assert (stream.result.completion_tokens, stream.result.finish_detail) == (4, "error")
        for call in (
            lambda: llm.generate([5], PARAMS),
            lambda: llm.generate([[5], [6]], PARAMS),
            lambda: llm.beams([5], 2, PARAMS),
            lambda: llm.logits([5]),
            lambda: session.save(tmp_path / "cache"),
            lambda: next(measure(llm.model, list(range(3, 11)), windows(8, 8))),
        ):
            with pytest.raises(LLMGenError, match=CHANGED):
                call()
        [answer] = llm.batch([Request([5], PARAMS)])
        assert answer.error is not None
        assert answer.result is not None
        assert answer.result.finish_detail == "error"
        assert not (tmp_path / "cache").exists()


def test_a_file_that_is_replaced_as_it_should_be(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "m.gguf")
    with LLM(path, n_ctx=64, n_threads=1) as llm:
        expected = llm.generate([5], PARAMS).token_ids
        os.replace(tiny.write(tmp_path / "other.gguf"), path)
        assert llm.generate([5], PARAMS).token_ids == expected
        path.unlink()
        assert llm.generate([5], PARAMS).token_ids == expected


def test_broken_logits_of_a_changed_file_are_told_as_that(tmp_path: Path) -> None:
    """What the weights have become says less than that they are others now."""
    path = tiny.write(tmp_path / "m.gguf")
    with LLM(path, n_ctx=64, n_threads=1) as llm:
        stream = llm.stream([5, 6], PARAMS)
        next(stream)
        with path.open("r+b") as file:
            file.seek(-4096, os.SEEK_END)
            file.write(b"\xff" * 4096)  # NaN
        with pytest.raises(LLMGenError, match=CHANGED):
            list(stream)
