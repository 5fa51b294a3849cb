"""What a command says when it opens a model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tiny
import variants
from llmgen.backends.cpu import memory
from llmgen.cli.common.loading import open_llm
from llmgen.cli.common.model_options import EngineOptions


@pytest.mark.parametrize(
    ("n_ctx", "scaling", "says"),
    [
        (256, None, ""),
        (700, None, r"made for 256: text after the first 256 .*; --rope-scaling yarn:3 stretches"),
        (512, "yarn:2", ""),
        (700, "linear:2", r"made for 256, which --rope-scaling makes 512: .*first 512 .*linear:3 stretches"),
        (256 * 1024 + 1, None, r"made for 256: text after the first 256 tokens may make no sense$"),
    ],
)
def test_a_context_beyond_what_the_model_was_made_for_is_told(
    n_ctx: int, scaling: str | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny.write(tmp_path / "tiny.gguf")
    with open_llm(path, EngineOptions(n_ctx=n_ctx, n_threads=1, rope_scaling=scaling)) as llm:
        assert llm.n_ctx == n_ctx
    said = capsys.readouterr().err
    assert ("warning: a context of" in said) == bool(says)
    assert re.search(says, said, re.MULTILINE)


def test_no_scaling_is_named_that_the_model_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    with open_llm(variants.build("phi3-long"), EngineOptions(n_ctx=700, n_threads=1)):
        pass
    said = capsys.readouterr().err
    assert "made for 256" in said
    assert "--rope-scaling" not in said


@pytest.mark.parametrize("free", [None, 1000, 1 << 40])
def test_weights_that_are_larger_than_the_memory_are_told(
    free: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny.write(tmp_path / "experts.gguf", **tiny.mixture())
    monkeypatch.setattr(memory, "available_bytes", lambda: free)
    with open_llm(path, EngineOptions(n_ctx=64, n_threads=1)) as llm:
        assert llm.model.weight_bytes > 100_000
    lines = [line for line in capsys.readouterr().err.splitlines() if "of memory are free" in line]
    assert len(lines) == (free == 1000)
    assert all("kB and 1.0 kB of memory are free" in line for line in lines)
