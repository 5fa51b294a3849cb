"""The models that Ollama and LM Studio have: they are read where they are, and nothing is copied.

Ollama keeps a file as ``blobs/sha256-HEX`` and names it in a manifest,
``manifests/HOST/NAMESPACE/NAME/TAG`` (types/model and manifest in Ollama's sources); LM
Studio has folders ``models/OWNER/REPO/FILE.gguf``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from llmgen.files import read_bounded
from llmgen.hub.contents import Candidate, candidates
from llmgen.hub.local import LocalModel, gguf_files

OLLAMA, LM_STUDIO = "ollama:", "lmstudio:"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})\Z")
_MODEL_LAYER = "application/vnd.ollama.image.model"
_ADAPTER_LAYER = "application/vnd.ollama.image.adapter"
_MOST_BYTES = 1 << 20
_USUAL = ("registry.ollama.ai", "library")  # what Ollama leaves out of a name
_POINTER = ".lmstudio-home-pointer"


def store_models() -> list[LocalModel]:
    """The models of both programs."""
    return [*ollama_models(), *lm_studio_models()]


def find_in_stores(name: str) -> Path | None:
    """The file of a model that a name with ``ollama:`` or ``lmstudio:``, or one of Ollama's names, means."""
    if name.startswith(LM_STUDIO):
        return next((model.path for model in lm_studio_models() if model.name == name), None)
    wanted = name.removeprefix(OLLAMA)
    tagged = wanted if ":" in wanted.rpartition("/")[2] else f"{wanted}:latest"
    return next((model.path for model in ollama_models() if model.name == OLLAMA + tagged), None)


# -- Ollama


def _ollama_folders() -> list[Path]:
    """$OLLAMA_MODELS, else the user's folder and the one of the system's service."""
    if chosen := os.environ.get("OLLAMA_MODELS"):
        return [Path(chosen)]
    home = Path(os.path.expanduser("~"))
    return [home / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models")]


def ollama_models() -> list[LocalModel]:
    """Ollama's models, ``ollama:NAME:TAG``; one with an adapter, without which it is another model, is left out."""
    found: dict[str, LocalModel] = {}
    for folder in _ollama_folders():
        for manifest, name in _manifests(folder / "manifests"):
            blob = _model_blob(folder, manifest)
            if blob is not None and name not in found:
                with suppress(OSError):
                    found[name] = LocalModel(name, (blob,), blob.stat().st_size, "Ollama")
    return [found[name] for name in sorted(found)]


def _manifests(root: Path) -> Iterator[tuple[Path, str]]:
    """The manifests, and what Ollama calls their models."""
    for place, _, tags in os.walk(root):
        parts = Path(place).relative_to(root).parts
        if len(parts) < 2:
            continue
        if parts[:2] == _USUAL:
            parts = parts[2:]
        elif parts[0] == _USUAL[0]:
            parts = parts[1:]
        for tag in tags:
            yield Path(place, tag), f"{OLLAMA}{'/'.join(parts)}:{tag}"


def _model_blob(folder: Path, manifest: Path) -> Path | None:
    layers = _layers(manifest)
    if any(layer.get("mediaType") == _ADAPTER_LAYER for layer in layers):
        return None
    for layer in layers:
        digest = _DIGEST.match(str(layer.get("digest")))
        if layer.get("mediaType") == _MODEL_LAYER and digest:
            blob = folder / "blobs" / f"sha256-{digest[1]}"
            return blob if blob.is_file() else None
    return None


def _layers(manifest: Path) -> list[dict[str, Any]]:
    with suppress(OSError, ValueError, RecursionError), open(manifest, "rb") as file:
        value = json.loads(read_bounded(file, _MOST_BYTES) or b"")
        layers = value.get("layers") if isinstance(value, dict) else None
        return [layer for layer in layers if isinstance(layer, dict)] if isinstance(layers, list) else []
    return []


# -- LM Studio


def _lm_studio_folders() -> list[Path]:
    """The folders of models of LM Studio's versions; a file in the home says where its folder is now."""
    home = Path(os.path.expanduser("~"))
    folders = [home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"]
    with suppress(OSError), open(home / _POINTER, "rb") as file:
        moved = (read_bounded(file, 10_000) or b"").decode("utf-8", "surrogateescape").strip()
        if moved and "\0" not in moved:
            folders.insert(0, Path(moved) / "models")
    return list(dict.fromkeys(folders))


def lm_studio_models() -> list[LocalModel]:
    """LM Studio's models, ``lmstudio:OWNER/REPO/FILE``."""
    found: dict[str, LocalModel] = {}
    for folder in _lm_studio_folders():
        for model in candidates(gguf_files(folder)):
            name = LM_STUDIO + re.sub(r"\.gguf$", "", model.path, flags=re.IGNORECASE)
            if not model.missing and name not in found:
                found[name] = LocalModel(name, _paths(folder, model), model.size or 0, "LM Studio")
    return [found[name] for name in sorted(found)]


def _paths(folder: Path, model: Candidate) -> tuple[Path, ...]:
    return tuple(folder.joinpath(*file.path.split("/")) for file in model.files)
