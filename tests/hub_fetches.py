"""What the tests of fetching from a hub share: contents, the fetch itself, and what it leaves."""

from __future__ import annotations

import os
from pathlib import Path

from huggingface_hub import constants

from hub_server import Hub, sha256
from llmgen import hub
from llmgen.hub.references import parse
from llmgen.hub.remote import Watch

DATA = b"GGUF" + bytes(range(256)) * 1000
OTHER = b"GGUF" + bytes(reversed(range(256))) * 1000
LOGIN = b"<!DOCTYPE html><html><title>Sign in</title></html>"


def pull(name: str = "o/r", memory: int | None = None, watch: Watch | None = None) -> Path:
    """Fetch what a name means, as ``llmgen pull`` does it."""
    reference = parse(name)
    assert reference is not None
    return hub.fetch_reference(reference, memory, watch)


def left(hub_at: Hub) -> list[str]:
    """Files in the cache and in the models folder that are no link and no lock: contents, branches, partial files."""
    folders = [Path(constants.HF_HUB_CACHE), Path(os.environ["LLMGEN_MODELS"])]
    paths = [path for folder in folders for path in folder.rglob("*")]
    return sorted(p.name for p in paths if p.is_file() and not p.is_symlink() and p.suffix != ".lock")


def partial(name: str = sha256(DATA)) -> Path:
    path = Path(constants.HF_HUB_CACHE) / "models--o--r" / "blobs" / f"{name}.llmgen-part"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
