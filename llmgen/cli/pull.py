"""``llmgen pull``: fetch models ahead of time."""

from __future__ import annotations

from typing import Annotated

import typer

from llmgen import hub
from llmgen.cli.common.models import fetch
from llmgen.errors import DownloadError
from llmgen.hub import state
from llmgen.hub.references import parse
from llmgen.visible import visible


def complete_name(incomplete: str) -> list[str]:
    """Known names and aliases for the shell's completion."""
    return [name for name in (*hub.KNOWN_MODELS, *state.aliases()) if name.startswith(incomplete)]


def command(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help=f"{', '.join(hub.KNOWN_MODELS)}, hf.co/OWNER/REPO[:TYPE], hf.co/OWNER/REPO/FILE.gguf, "
            "or the URL of a .gguf file.",
            autocompletion=complete_name,
        ),
    ],
) -> None:
    """Fetch models ahead of time.

    A model of the hub goes into the Hugging Face cache, which other programs share; one that is
    there is fetched again only if it has changed on the hub. Any other goes into the models folder.
    Size and SHA-256 are checked; a fetch that was interrupted goes on where it was. The path is
    printed on stdout.
    """
    models = [_known(name) for name in names]
    for model in models:
        print(visible(fetch(model)))


def _known(name: str) -> hub.KnownModel | hub.Reference:
    target = state.alias(name) or name
    if target in hub.KNOWN_MODELS:
        return hub.KNOWN_MODELS[target]
    if (reference := parse(target)) is not None:
        return reference
    import difflib

    known = list(hub.KNOWN_MODELS)
    near = difflib.get_close_matches(name.lower(), known, n=2, cutoff=0.5) or known
    raise DownloadError(
        f"there is no model {name!r} to fetch; did you mean {' or '.join(near)}? "
        "A model of the hub is named as hf.co/OWNER/REPO:TYPE"
    )
