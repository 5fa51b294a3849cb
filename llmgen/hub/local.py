"""A model on this computer, and the .gguf files below a folder."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from llmgen.hub.contents import File


@dataclass(frozen=True)
class LocalModel:
    """A model that is here: what to type for it, its files (of a split model, the parts in order), where it lies."""

    name: str
    files: tuple[Path, ...]
    size: int
    place: str

    @property
    def path(self) -> Path:
        """Its file; of a split model, the first part."""
        return self.files[0]

    @property
    def n_parts(self) -> int:
        """How many files the model has."""
        return len(self.files)


def gguf_files(folder: Path) -> list[File]:
    """The .gguf files in a folder and below it, with paths relative to it."""
    files = []
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            if name.lower().endswith(".gguf"):
                with suppress(OSError):  # a link to a file that is gone
                    files.append(File(path.relative_to(folder).as_posix(), path.stat().st_size))
    return files
