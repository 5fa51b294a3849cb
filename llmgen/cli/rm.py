"""``llmgen rm``: remove models that llmgen has fetched."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from llmgen.cli.common.models import complete_model
from llmgen.cli.terminal.output import note, say, size
from llmgen.errors import LLMGenError, UsageError
from llmgen.hub import state
from llmgen.visible import visible


def command(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...", help="Names that `llmgen list` shows.", autocompletion=complete_model
        ),
    ],
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
) -> None:
    """Remove models from the disk, after a question.

    Only what llmgen itself has fetched is removed: never a file that you or another program
    have put there. Of an alias, only the name goes. What an interrupted fetch from a
    repository has left goes by the repository's name.
    """
    from llmgen.hub.removal import plan_removal

    aliases = [name for name in models if state.alias(name) is not None]
    removals = [plan_removal(name) for name in models if name not in aliases]
    if removals and not yes:
        what = ", ".join(f"{visible(removal.name)} ({size(removal.size)})" for removal in removals)
        _ask(f"remove {what} for good?")
    for removal in removals:
        removal.perform()
        note(f"removed {visible(removal.name)}, {size(removal.size)}")
    for name in aliases:
        target = state.alias(name)
        state.remove_alias(name)
        note(f"removed the alias {name}; {visible(target)} stays")


def _ask(question: str) -> None:
    """Go on only after a yes.  Raises UsageError where nobody can be asked."""
    if not sys.stdin.isatty():
        raise UsageError("rm asks before it removes anything, and there is no terminal to ask at; add --yes")
    say(f"{question} [y/N]")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise LLMGenError("nothing was removed")
