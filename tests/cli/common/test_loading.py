"""What a command says when it opens a model."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiny
from llmgen.backends.cpu import memory
from llmgen.cli.common.loading import open_llm
from llmgen.cli.common.options import EngineOptions


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
