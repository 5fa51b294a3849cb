"""The models of Ollama and LM Studio, read where they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmgen import hub
from llmgen.errors import ModelFileError
from llmgen.hub.stores import store_models

DIGEST = "ab" * 32


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test's own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LLMGEN_MODELS", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ollama(home: Path, name: str, layers: object, blob: bool = True) -> Path:
    """A model as Ollama keeps it."""
    folder = home / ".ollama" / "models"
    manifest = folder / "manifests" / name
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(layers if isinstance(layers, str) else json.dumps({"layers": layers}))
    path = folder / "blobs" / f"sha256-{DIGEST}"
    if blob:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"GGUF")
    return path


def layer(kind: str, digest: str = f"sha256:{DIGEST}") -> dict[str, object]:
    return {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": digest, "size": 4}


@pytest.mark.parametrize(
    ("manifest", "names"),
    [
        ("registry.ollama.ai/library/llama3.2/1b", ["ollama:llama3.2:1b", "llama3.2:1b"]),
        ("registry.ollama.ai/library/llama3.2/latest", ["ollama:llama3.2:latest", "ollama:llama3.2"]),
        ("registry.ollama.ai/me/mine/q4", ["ollama:me/mine:q4"]),
        ("hf.co/o/r/Q4_K_M", ["ollama:hf.co/o/r:Q4_K_M"]),
    ],
)
def test_ollamas_models(home: Path, manifest: str, names: list[str]) -> None:
    path = ollama(home, manifest, [layer("license"), layer("template"), layer("model")])
    assert [(m.name, m.path, m.place) for m in store_models()] == [(names[0], path, "Ollama")]
    for name in names:
        assert hub.find(name) == path
    with pytest.raises(ModelFileError, match="llmgen list --all"):
        hub.find("ollama:other")


def test_another_folder_of_ollama(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ollama(home, "registry.ollama.ai/library/m/1b", [layer("model")])
    (home / ".ollama" / "models").rename(home / "elsewhere")
    assert store_models() == []
    monkeypatch.setenv("OLLAMA_MODELS", str(home / "elsewhere"))
    assert [model.name for model in store_models()] == ["ollama:m:1b"]


@pytest.mark.parametrize(
    "layers",
    [
        [layer("model"), layer("adapter")],
        [layer("projector")],
        [layer("model", "sha256:../../../etc/passwd")],
        [layer("model", DIGEST)],
        [3, None],
        {},
        "",
        "null",
        "[" * 50_000,
    ],
)
def test_manifests_that_name_no_model(home: Path, layers: object) -> None:
    ollama(home, "registry.ollama.ai/library/m/1b", layers)
    assert store_models() == []


def test_a_blob_that_is_not_there(home: Path) -> None:
    ollama(home, "registry.ollama.ai/library/m/1b", [layer("model")], blob=False)
    assert store_models() == []


@pytest.mark.parametrize("root", [".lmstudio/models", ".cache/lm-studio/models", "moved/models"])
def test_lm_studios_models(home: Path, root: str) -> None:
    (home / ".lmstudio-home-pointer").write_text(f"{home / 'moved'}\n")
    for name in (
        "o/r/m-Q4_K_M.gguf",
        "o/r/mmproj-m.gguf",
        "o/s/x-00001-of-00002.gguf",
        "o/s/x-00002-of-00002.gguf",
    ):
        path = home / root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"GGUF")
    assert [(model.name, model.n_parts) for model in store_models()] == [
        ("lmstudio:o/r/m-Q4_K_M", 1),
        ("lmstudio:o/s/x-00001-of-00002", 2),
    ]
    assert hub.find("lmstudio:o/r/m-Q4_K_M") == home / root / "o/r/m-Q4_K_M.gguf"
    with pytest.raises(ModelFileError, match="llmgen list --all"):
        hub.find("lmstudio:o/r/mmproj-m")
