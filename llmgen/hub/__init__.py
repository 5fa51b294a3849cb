"""Where models come from: the models folder, names, and fetching by name.

Imports neither numpy nor anything that draws on a terminal.
"""

from __future__ import annotations

from pathlib import Path

from llmgen.hub.catalog import KNOWN_MODELS, KnownModel, PackageFile
from llmgen.hub.fetch import Progress, fetch
from llmgen.hub.folder import LocalModel, find, local_models, models_folder

__all__ = [
    "KNOWN_MODELS",
    "KnownModel",
    "LocalModel",
    "PackageFile",
    "Progress",
    "fetch",
    "find",
    "local_models",
    "locate",
    "models_folder",
]


def locate(model: str) -> Path:
    """The file that MODEL names; a known model that is not here yet is fetched first.

    Raises:
        ModelFileError: nothing has that name.
        DownloadError: it could not be fetched.
    """
    found = find(model)
    return found if isinstance(found, Path) else fetch(found, models_folder())
