"""Before the first command that runs a model: its kernels are compiled, so that no test meets that."""

from __future__ import annotations

import pytest

from models import gemma3, smollm2
from program import llmgen


@pytest.fixture(scope="session")
def compiled() -> None:
    """Kernels for both models, with both types of cache."""
    for model in (smollm2, gemma3):
        try:
            path = model()
        except pytest.skip.Exception:
            continue
        done = llmgen("warmup", str(path))
        assert done.returncode == 0, done.stderr


@pytest.fixture(autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """History and kept conversations go into a folder of the test's own."""
    monkeypatch.setenv("LLMGEN_STATE", str(tmp_path_factory.mktemp("state")))
