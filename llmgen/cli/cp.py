"""``llmgen cp``: another name for a model, as other programs call it."""

from __future__ import annotations

from typing import Annotated

import typer

from llmgen.cli.common.models import ModelArgument, complete_alias, set_alias


def command(
    model: ModelArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new name.", autocompletion=complete_alias)],
) -> None:
    """Give a model another name. Nothing is copied: it is `llmgen alias` the other way round."""
    set_alias(name, model)
