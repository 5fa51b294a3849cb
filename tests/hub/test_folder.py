"""What MODEL means."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgen import hub
from llmgen.errors import ModelFileError, UsageError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder that looks like a clone without models, and no settings."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "llmgen"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LLMGEN_MODELS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home" / "data"))
    return tmp_path


def put(path: Path, size: int = 3) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def test_which_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = hub.models_folder()
    assert user.is_absolute()
    assert user.name == "models"
    (here / "models").mkdir()
    assert hub.models_folder() == Path("models")
    monkeypatch.setenv("LLMGEN_MODELS", "~/elsewhere")
    assert hub.models_folder() == here / "home" / "elsewhere"


@pytest.mark.parametrize("project", [None, '[project]\nname = "mine"', "name = llmgen", "[tool.x]", "\xff"])
def test_another_projects_models_are_left_alone(here: Path, project: str | None) -> None:
    put(here / "models" / "small.gguf")
    assert hub.find("small") == Path("models/small.gguf")
    (here / "pyproject.toml").unlink()
    if project is not None:
        (here / "pyproject.toml").write_text(project, encoding="latin-1")
    assert hub.models_folder().is_absolute()
    with pytest.raises(ModelFileError, match="no model 'small'"):
        hub.find("small")


def test_a_name_and_a_path(here: Path) -> None:
    path = put(here / "models" / "small.gguf")
    for name in ("small", "small.gguf", "models/small.gguf", str(path)):
        found = hub.find(name)
        assert isinstance(found, Path)
        assert found.samefile(path)


def test_a_file_here_comes_before_a_name(here: Path) -> None:
    put(here / "models" / "small.gguf")
    put(here / "small")
    assert hub.find("small") == Path("small")


def test_a_known_name_is_a_file_when_it_is_here(here: Path) -> None:
    assert hub.find("smollm2") is hub.KNOWN_MODELS["smollm2"]
    (here / "smollm2").mkdir()
    assert hub.find("smollm2") is hub.KNOWN_MODELS["smollm2"]
    put(here / "models" / "smollm2.gguf")
    assert hub.find("smollm2") == Path("models/smollm2.gguf")


def test_a_split_model_is_one(here: Path) -> None:
    for number in (1, 2, 3):
        put(here / "models" / f"big-0000{number}-of-00003.gguf", size=number)
    [model] = hub.local_models()
    assert (model.name, model.size, model.n_parts) == ("big", 6, 3)
    assert hub.find("big") == Path("models/big-00001-of-00003.gguf")
    assert hub.find("big-00001-of-00003") == Path("models/big-00001-of-00003.gguf")


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("smolm2", "did you mean smollm2"),
        ("Gemma3", "did you mean gemma3-270m"),
        ("zzz", "known names are gemma3-270m, mine, smollm2$"),
        ("nowhere/x.gguf", "no file nowhere/x.gguf"),
        ("x.gguf", "no file x.gguf"),
        (".", "is a folder"),
        ("models", "is a folder"),
        ("/dev/null", "not a regular file"),
        ("a\0b", "not a path"),
        ("x" * 5000, "cannot look up"),
    ],
)
def test_a_model_that_is_nowhere(here: Path, model: str, says: str) -> None:
    put(here / "models" / "mine.gguf")
    with pytest.raises(ModelFileError, match=says):
        hub.find(model)


def test_an_empty_name_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="the model's name is empty"):
        hub.find("")


def test_no_models_folder_yet() -> None:
    assert hub.local_models() == []
