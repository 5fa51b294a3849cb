"""``llmgen alias``: short names for models."""

from __future__ import annotations

from typing import Annotated

import typer

from llmgen.cli.common.models import complete_alias, complete_model, set_alias
from llmgen.cli.common.options import JsonOption
from llmgen.cli.terminal.output import note, print_json, table
from llmgen.errors import LLMGenError, UsageError, shown
from llmgen.hub import state


def command(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The short name.", autocompletion=complete_alias)
    ] = None,
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="What it stands for.", autocompletion=complete_model),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Forget NAME; the model stays.")] = False,
    json: JsonOption = False,
) -> None:
    """Have NAME stand for MODEL wherever a model is named; without arguments, list the aliases."""
    if name is None:
        if remove:
            raise UsageError("--remove needs the NAME of an alias")
        _show(json)
        return
    if json:
        raise UsageError("--json is for the list of aliases, without NAME")
    if remove:
        if model is not None:
            raise UsageError("--remove takes a NAME alone")
        _remove(name)
    elif model is None:
        target = state.alias(name)
        if target is None:
            raise UsageError(f"there is no alias {shown(name)}; give the MODEL that it is to stand for")
        print(target)
    else:
        set_alias(name, model)


def _show(json: bool) -> None:
    known = state.aliases()
    if json:
        print_json(known)
    elif known:
        table(("alias", "model"), list(known.items()))
    else:
        note("there is no alias yet; llmgen alias NAME MODEL makes one")


def _remove(name: str) -> None:
    if state.alias(name) is None:
        raise LLMGenError(f"there is no alias {shown(name)}; `llmgen alias` lists them")
    state.remove_alias(name)
