"""``LLM`` finds models by the names of the command line."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

import tiny
from llmgen import LLM, ModelFileError, hub
from llmgen.api_base import KVType
from llmgen.backends.cpu.kernels.kv import TABLE
from llmgen.model.kv_config import KV_KINDS, KVCacheConfig


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LLMGEN_MODELS", str(tmp_path))
    tiny.write(tmp_path / "m.gguf")
    return tmp_path


def test_paths_and_names(folder: Path) -> None:
    for model in ("m", "m.gguf", str(folder / "m.gguf"), folder / "m.gguf"):
        with LLM(model, n_ctx=8, n_threads=1) as llm:
            assert llm.n_ctx == 8
    with pytest.raises(ModelFileError, match="did you mean smollm2"):
        LLM("smolm2")
    with pytest.raises(ModelFileError, match="no such file"):
        LLM(folder / "m")  # a path is a path


def test_a_known_name_is_fetched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fetch(model: hub.KnownModel, where: Path) -> Path:
        asked.append((model, where))
        return folder / "m.gguf"

    monkeypatch.setattr(hub, "fetch", fetch)
    with LLM("smollm2", n_ctx=8, n_threads=1) as llm:
        assert llm.n_ctx == 8
    assert asked == [(hub.KNOWN_MODELS["smollm2"], folder)]


def test_the_types_of_caches_are_those_that_type_checkers_know() -> None:
    assert (
        {KVCacheConfig.of(kind).k for kind in get_args(KVType) if kind != "auto"}
        == set(KV_KINDS)
        == set(TABLE)
    )
