"""A model whose logits are not finite gives an error, whoever asks it, and no text or figure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tiny
from engine.fakes import FakeModel
from llmgen import LLM, LLMGenError, SamplingParams
from llmgen.engine import Request
from llmgen.engine.perplexity import measure, windows
from program import llmgen, refused

PARAMS = SamplingParams(temp=0, max_tokens=4)


@pytest.fixture(params=["NaN", "infinite"])
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """A model file, and the word that its error has."""
    scale = np.ones(tiny.WIDTH, np.float32)
    scale[0] = np.nan if request.param == "NaN" else np.inf
    return tiny.write(tmp_path / "broken.gguf", tensors={"output_norm.weight": scale}), request.param


def test_python(broken: tuple[Path, str]) -> None:
    path, found = broken
    with LLM(path, n_ctx=64, n_threads=1) as llm:
        for params in (PARAMS, SamplingParams(seed=1), SamplingParams(mirostat=2)):
            stream = llm.stream([5, 6], params)
            with pytest.raises(LLMGenError, match=found):
                list(stream)
            assert stream.result is not None
            assert stream.result.token_ids == ()
        with pytest.raises(LLMGenError, match=found):
            llm.beams([5, 6], 2, PARAMS)
        for answer in llm.batch([Request([5], PARAMS), Request([6], PARAMS)]):
            assert found in str(answer.error)
        ids = list(range(3, 19))
        with pytest.raises(LLMGenError, match=found):
            next(measure(llm.model, ids, windows(16, 8)))


def test_command_line(broken: tuple[Path, str], tmp_path: Path) -> None:
    path, found = broken
    text = tmp_path / "text.txt"
    text.write_text("ab" * 20)
    assert found in refused(llmgen("run", str(path), "ab", "--raw"), 1)
    done = llmgen("perplexity", str(path), str(text), "-c", "8", "--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert found in done.stderr


def test_figures_end_before_the_window_with_broken_logits() -> None:
    class Model(FakeModel):
        def logits(self, tokens: list[int]) -> np.ndarray:
            return super().logits(tokens) * (np.nan if 9 in tokens else 1)

    figures = measure(Model(), [1] * 24 + [9] + [1] * 7, windows(32, 8))
    good = [next(figures) for _ in range(3)]
    assert all(np.isfinite(figure.perplexity) for figure in good)
    with pytest.raises(LLMGenError, match="NaN"):
        next(figures)
