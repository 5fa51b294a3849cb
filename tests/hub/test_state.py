"""What is remembered of models: aliases, fetched files, the last use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llmgen import hub
from llmgen.errors import LLMGenError, ModelFileError, UsageError
from llmgen.hub import state


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder and a models folder of the test's own."""
    monkeypatch.setenv("LLMGEN_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("LLMGEN_MODELS", str(tmp_path / "models"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "m.gguf").write_bytes(b"GGUF")
    return tmp_path / "state"


def test_an_alias_is_what_it_stands_for(folder: Path) -> None:
    assert state.aliases() == {}
    state.set_alias("fast", "m")
    state.set_alias("far", "hf.co/o/r:Q8_0")
    assert state.aliases() == {"far": "hf.co/o/r:Q8_0", "fast": "m"}
    assert hub.find("fast") == hub.find("m")
    assert str(hub.find("far")) == "hf.co/o/r:Q8_0"
    state.set_alias("fast", "smollm2")
    assert hub.find("fast") is hub.KNOWN_MODELS["smollm2"]
    state.remove_alias("fast")
    with pytest.raises(ModelFileError, match="did you mean far"):
        hub.find("fast")


def test_a_file_comes_before_an_alias() -> None:
    state.set_alias("x", "smollm2")
    Path("x").write_bytes(b"GGUF")
    assert hub.find("x") == Path("x")


@pytest.mark.parametrize(
    "name", ["", "a/b", "..", ".a", "a b", "a:b", "x" * 65, "m.gguf", "a\n", "ä", "-a", "a\0"]
)
def test_names_that_no_alias_has(folder: Path, name: str) -> None:
    assert state.alias(name) is None
    with pytest.raises(UsageError, match="cannot be an alias"):
        state.set_alias(name, "m")
    assert not folder.exists()


def test_an_alias_of_what_is_gone_says_so(folder: Path) -> None:
    state.set_alias("old", "nothing")
    with pytest.raises(ModelFileError, match="the alias old stands for 'nothing': there is no model"):
        hub.find("old")


def test_aliases_in_a_circle() -> None:
    state.set_alias("a", "b")
    state.set_alias("b", "a")
    with pytest.raises(ModelFileError, match="stands for the alias 'b'"):
        hub.find("a")


def test_a_state_folder_that_cannot_be_written(folder: Path) -> None:
    folder.write_text("a file")
    state.note_use(Path("models/m.gguf"))
    state.note_fetched(Path("models/m.gguf"), "x")
    assert state.last_use(Path("models/m.gguf")) is None
    assert state.fetched_from(Path("models/m.gguf")) is None
    assert hub.find("m").samefile("models/m.gguf")  # type: ignore[union-attr]
    with pytest.raises(LLMGenError, match="cannot keep the alias a"):
        state.set_alias("a", "m")


def test_what_was_fetched_and_used_is_known_by_its_real_path(tmp_path: Path) -> None:
    path = Path("models/m.gguf")
    (tmp_path / "link.gguf").symlink_to(path)
    state.note_fetched(path, "hf.co/o/r")
    state.note_use(path)
    assert state.fetched_from(tmp_path / "link.gguf") == "hf.co/o/r"
    first = state.last_use(tmp_path / "link.gguf")
    assert first is not None
    [used] = (tmp_path / "state" / "used").iterdir()
    os.utime(used, (1, 1))
    assert state.last_use(path) == 1
    state.note_use(path)
    assert (state.last_use(path) or 0) >= first - 1
    state.forget(path)
    assert state.last_use(path) is None
    assert state.fetched_from(path) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"path": 3}', "[" * 50_000, "\xff"])
def test_notes_that_were_damaged(folder: Path, text: str) -> None:
    state.note_fetched(Path("models/m.gguf"), "x")
    [note] = (folder / "fetched").iterdir()
    note.write_bytes(text.encode("latin-1"))
    assert state.fetched_from(Path("models/m.gguf")) is None


def test_several_models_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for name in ("m.gguf", "n.gguf"):
        (other / name).write_bytes(b"GGUF more")
    folders = [tmp_path / "none", tmp_path / "models", other]
    monkeypatch.setenv("LLMGEN_MODELS", os.pathsep.join(map(str, folders)))
    assert hub.models_folder() == tmp_path / "none"
    assert [(model.name, model.path) for model in hub.local_models()] == [
        ("m", tmp_path / "models" / "m.gguf"),
        ("n", other / "n.gguf"),
    ]
    assert hub.find("n") == other / "n.gguf"


@pytest.mark.skipif(os.pathsep != ":", reason="a colon in a folder's name")
def test_a_folder_with_a_colon_in_its_name_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a:b").mkdir()
    monkeypatch.setenv("LLMGEN_MODELS", str(tmp_path / "a:b"))
    assert hub.models_folders() == [tmp_path / "a:b"]
