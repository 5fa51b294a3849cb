"""A cache of kernels of a test's own, and what may lie in it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from kernels.compilations import KERNEL, LEVEL

from llmgen.backends.cpu.runtime.library import KernelLibrary
from llmgen.backends.cpu.runtime.store import readable_stores


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own."""
    monkeypatch.setenv("LLMGEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.delenv("LLMGEN_STORE_WARNED", raising=False)
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def code() -> bytes:
    """Object code of KERNEL, from the user's store."""
    KernelLibrary().require([KERNEL])
    found = [store.load(KERNEL, LEVEL) for store in readable_stores()]
    assert found[0]
    return found[0]
