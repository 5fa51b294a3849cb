"""Where the tests find the real models; fetched once where they are nowhere."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from llmgen import hub
from llmgen.errors import DownloadError

_REPOSITORY = Path(__file__).resolve().parents[1]


def smollm2() -> Path:
    """SmolLM2 135M Instruct, Q4_1 (98 MB); the test is skipped where it cannot be had."""
    return _found_or_skip("smollm2")


def gemma3() -> Path:
    """Gemma 3 270M, Q4_K_M (253 MB); the test is skipped where it cannot be had."""
    return _found_or_skip("gemma3-270m")


def _found_or_skip(name: str) -> Path:
    found = _find(name)
    if isinstance(found, str):
        pytest.skip(f"needs the model {name}: {found}")
    return found


@cache
def _find(name: str) -> Path | str:
    """The model's path, or why there is none; a failed fetch is not tried again in the same run."""
    here = _REPOSITORY / "models"
    chosen = hub.models_folder() if os.environ.get("LLMGEN_MODELS") else here
    for folder in (*hub.models_folders(), here):
        path = folder / f"{name}.gguf"
        if path.is_file():
            return path.resolve()
    if os.environ.get("LLMGEN_TEST_FETCH") == "0":
        return "not in the models folder, and LLMGEN_TEST_FETCH=0"
    try:
        return hub.fetch(hub.KNOWN_MODELS[name], chosen).resolve()
    except DownloadError as error:
        return str(error)
