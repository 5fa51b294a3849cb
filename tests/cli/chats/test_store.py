"""Conversations in files."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from llmgen.cli.chats import store
from llmgen.errors import LLMGenError

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi \N{PARTY POPPER}\ud800"},
    {"role": "assistant", "content": "Hello\n\n```\ncode\n```", "reasoning_content": "hm"},
]


def test_there_and_back(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    store.save(path, {"model": "m", "messages": TALK})
    assert store.load(path)["messages"] == TALK
    assert "\n  " in path.read_text("utf-8", "surrogatepass")  # for people
    if os.name == "posix":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(TALK))
    assert store.load(bare)["messages"] == TALK


def test_a_failure_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "talk.json"
    store.save(path, {"messages": TALK})
    before = path.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LLMGenError, match="No space left"):
        store.save(path, {"messages": TALK[:1]})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["talk.json"]
    with pytest.raises(LLMGenError, match="cannot write"):
        store.save(path / "below", {"messages": []})
    with pytest.raises(LLMGenError, match="there is no folder"):
        store.save(tmp_path / "slip" / "talk.json", {"messages": []})
    assert not (tmp_path / "slip").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"no json", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"x": 1}', "holds no list of messages"),
        (b'[{"role": "user"}]', "holds no list of messages"),
        (b'[{"role": "user", "content": 3}]', "holds no list of messages"),
        (b'[{"role": "tool", "content": "x"}]', "holds no list of messages"),
        (b'[{"role": "user", "content": "x"}, {"role": "system", "content": "x"}]', "holds no list"),
        (b'{"version": 9, "messages": []}', "has version 9"),
    ],
)
def test_files_that_are_none(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(LLMGenError, match=says):
        store.load(path)


def test_markdown() -> None:
    text = store.as_markdown(TALK, "Talk")
    assert text.startswith("# Talk\n\n## System\n\nBe brief.\n\n## User\n")
    assert "```\ncode\n```\n" in text
