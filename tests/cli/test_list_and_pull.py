"""``llmgen list`` and ``llmgen pull``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from models import smollm2
from program import llmgen, refused


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A models folder with one real model and one file that is none."""
    (tmp_path / "smollm2.gguf").symlink_to(smollm2())
    (tmp_path / "broken.gguf").write_bytes(b"<html>404</html>")
    (tmp_path / "notes.txt").write_text("not a model")
    return tmp_path


def test_list(folder: Path) -> None:
    done = llmgen("list", LLMGEN_MODELS=str(folder))
    assert done.returncode == 0
    assert str(folder) in done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert set(lines) == {"name", "broken", "smollm2", "gemma3-270m"}
    assert "98.4 MB" in lines["smollm2"]
    assert "llama" in lines["smollm2"]
    assert "Q4_1" in lines["smollm2"]
    assert lines["smollm2"].split()[5:7] == ["yes", "-"]
    assert "  no  " in lines["broken"]
    assert "broken does not run: " in done.stderr
    assert "llmgen pull gemma3-270m" in lines["gemma3-270m"]


def test_list_as_json(folder: Path) -> None:
    listed = json.loads(llmgen("list", "--json", LLMGEN_MODELS=str(folder)).stdout)
    assert listed["folder"] == str(folder)
    assert [model["name"] for model in listed["models"]] == ["broken", "smollm2"]
    assert listed["models"][1]["architecture"] == "llama"
    assert [model["name"] for model in listed["available"]] == ["gemma3-270m"]


def test_list_without_a_folder(tmp_path: Path) -> None:
    done = llmgen("list", LLMGEN_MODELS=str(tmp_path / "none"))
    assert done.returncode == 0
    assert "llmgen pull smollm2" in done.stdout
    assert not (tmp_path / "none").exists()


def test_pull_what_is_here(folder: Path) -> None:
    done = llmgen("pull", "smollm2", LLMGEN_MODELS=str(folder))
    assert done.returncode == 0
    assert done.stdout == f"{folder / 'smollm2.gguf'}\n"


def test_pull_an_unknown_name(tmp_path: Path) -> None:
    sentence = refused(llmgen("pull", "smolm", LLMGEN_MODELS=str(tmp_path)))
    assert "did you mean smollm2?" in sentence


def test_pull_offline(tmp_path: Path) -> None:
    done = llmgen(
        "pull",
        "smollm2",
        LLMGEN_MODELS=str(tmp_path),
        PIP_CONFIG_FILE="/dev/null",
        PIP_FIND_LINKS=None,
        PIP_EXTRA_INDEX_URL=None,
        PIP_INDEX_URL="http://127.0.0.1:9/simple",
    )
    assert done.returncode == 1
    assert done.stdout == ""
    first, last = done.stderr.splitlines()
    assert first.startswith("fetching smollm2")
    assert last.startswith("error: cannot reach the package index")
