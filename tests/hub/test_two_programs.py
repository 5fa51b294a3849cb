"""Two programs that fetch the same at once: what one finds is gone or there a moment later."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hub_fetches import DATA, OTHER, left, partial, pull
from hub_server import Hub, sha256
from llmgen.hub import remote
from llmgen.hub.cache import CachedRepository

Patch = pytest.MonkeyPatch


def first(action: Callable[[], object], work: Callable[..., Any]) -> Callable[..., Any]:
    """``work``, before which another program acts the first time."""
    waiting = [action]

    def late(*args: Any, **more: Any) -> Any:
        if waiting:
            waiting.pop()()
        return work(*args, **more)

    return late


@pytest.mark.parametrize("place", ["check_space", "transfer"])
def test_a_folder_that_the_other_removes_since_nothing_is_in_it(
    hub_at: Hub, monkeypatch: Patch, place: str
) -> None:
    hub_at.add("o/r", {"m.gguf": DATA})
    gone = CachedRepository("o/r").remove_empty_folders
    monkeypatch.setattr(remote, place, first(gone, getattr(remote, place)))
    assert pull().read_bytes() == DATA


def test_a_partial_file_that_is_whole_a_moment_later(hub_at: Hub, monkeypatch: Patch) -> None:
    hub_at.add("o/r", {"m.gguf": DATA})
    partial().write_bytes(DATA)
    exists = Path.exists

    def completed(path: Path) -> bool:
        found = exists(path)
        if path == partial():
            path.replace(CachedRepository("o/r").blob(sha256(DATA)))
        return found

    monkeypatch.setattr(Path, "exists", completed)
    assert pull().read_bytes() == DATA
    assert left(hub_at) == sorted([sha256(DATA), "main"])


def test_at_no_moment_a_name_leads_to_nothing(hub_at: Hub, monkeypatch: Patch) -> None:
    repo = hub_at.add("o/r", {"m.gguf": DATA}, commit=None)
    path = pull()
    repo.files["m.gguf"] = OTHER
    seen = []
    monkeypatch.setattr(os, "symlink", first(lambda: seen.append(path.read_bytes()), os.symlink))
    assert pull() == path
    assert (seen, path.read_bytes()) == ([DATA], OTHER)


def test_a_name_that_both_make_at_once(hub_at: Hub, monkeypatch: Patch) -> None:
    """As where the file system has no locks."""
    hub_at.add("o/r", {"m.gguf": DATA})
    path = pull()
    here, blob = CachedRepository("o/r"), path.resolve()
    path.unlink()
    monkeypatch.setattr(os, "symlink", first(lambda: here.add(blob, path), os.symlink))
    here.add(blob, path)
    assert path.is_symlink()
    assert path.resolve() == blob
    assert os.listdir(path.parent) == ["m.gguf"]
    assert blob.read_bytes() == DATA
