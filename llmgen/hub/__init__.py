"""Where models come from: the models folder, names, and fetching by name.

Imports neither numpy nor anything that draws on a terminal.
"""

from __future__ import annotations

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
    "models_folder",
]
