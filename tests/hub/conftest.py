"""A hub of the test's own, and folders that nothing is in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hub_server
from hub_server import Hub
from program import HANGS_S


@pytest.fixture
def hub_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that llmgen asks, with an empty cache and an empty models folder; pauses between attempts take no time."""
    from huggingface_hub import constants

    with hub_server.serving() as hub:
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in hub_server.DIRECTLY.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("LLMGEN_MODELS", str(tmp_path / "models"))
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "hf" / "token"))
        for name in (
            "HF_HUB_DOWNLOAD_TIMEOUT",
            "HF_HUB_ETAG_TIMEOUT",
        ):  # a server that is held up has not gone
            monkeypatch.setattr(constants, name, HANGS_S)
        # as in a process that has not asked the hub yet, and on a day when it has not been asked
        monkeypatch.setattr(constants, "AGENT_HARNESSES_PATH", str(tmp_path / "hf" / "agents"), raising=False)
        if agents := sys.modules.get("huggingface_hub.utils._detect_agent"):
            monkeypatch.setattr(agents, "_registry", None, raising=False)
        monkeypatch.setattr("llmgen.hub.transfer.PAUSES_S", (0.0,) * 5)
        yield hub
