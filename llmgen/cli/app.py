"""The ``llmgen`` program: its commands and the options before them.

``--help`` must be instant, so a command's module is imported only when the command is
used, and a line on each command is here.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, MutableMapping
from typing import Annotated, Any

import typer

from llmgen.cli.common.arguments import reading_texts
from llmgen.cli.common.bash import whole_words
from llmgen.cli.common.completion import commands_that_begin, offering_values
from llmgen.cli.common.help import Command, LightGroup
from llmgen.cli.common.volume import with_volume

COMMANDS = {
    "run": "Complete one prompt.",
    "chat": "Talk with a model.",
    "chats": "List, search, rename, export or remove kept conversations.",
    "batch": "Complete many prompts, a JSON line for each.",
    "perplexity": "Measure how well a model predicts a text.",
    "bench": "Measure tokens per second.",
    "inspect": "Show what is in a model file, and what llmgen will do with it (also: show).",
    "plan": "Measure which kind of KV cache a model should have here.",
    "quantize": "Write the same model in another type.",
    "tokenize": "Show the tokens of a text, or the text of tokens.",
    "list": "List the models that are here, and those that can be fetched (also: ls).",
    "pull": "Fetch a model ahead of time: a known one, one of the hub, or of a URL.",
    "rm": "Remove models that llmgen has fetched.",
    "alias": "Give a model a short name (also: cp MODEL NAME).",
    "ps": "List the running llmgen processes.",
    "warmup": "Compile the kernels for this CPU ahead of time.",
}


ALIASES = {"ls": "list", "show": "inspect", "remove": "rm"}
"""Other names that people type."""

_UNLISTED = ("cp",)
"""Commands that another one's line in the help mentions."""


class _LazyCommands(MutableMapping[str, Any]):
    """Name -> command; a command is made when it is looked up."""

    def __getitem__(self, name: str) -> Any:
        name = ALIASES.get(name, name)
        if name not in COMMANDS and name not in _UNLISTED:
            raise KeyError(name)
        module = importlib.import_module(f"llmgen.cli.{name}")
        if hasattr(module, "__path__"):
            module = importlib.import_module(f"llmgen.cli.{name}.command")
        if hasattr(module, "app"):  # a group of commands
            return typer.main.get_command(_completed(module.app))
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        command = reading_texts(with_volume(offering_values(module.command), quiet=name != "chat"))
        app.command(name, cls=Command, short_help=COMMANDS.get(name, ""))(command)
        return _with_other_names(typer.main.get_command(app))

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)

    def __setitem__(self, name: str, command: Any) -> None:
        raise TypeError("add a command to COMMANDS and a file to llmgen/cli")

    __delitem__ = __setitem__  # type: ignore[assignment]


def _completed(app: typer.Typer) -> typer.Typer:
    """Give a group and its commands the same decorators as a single command."""
    for entry in (app.registered_callback, *app.registered_commands):
        if entry is not None and entry.callback is not None:
            entry.callback = reading_texts(
                with_volume(offering_values(entry.callback), below=entry is not app.registered_callback)
            )
    for command in app.registered_commands:
        command.cls = Command
    return app


def _with_other_names(command: Any) -> Any:
    """Let a command accept the names that other programs have for its options."""
    from llmgen.cli.common.other_names import own_flag

    flags = {flag.lstrip("-") for parameter in command.params for flag in parameter.opts}

    def known(name: str) -> str:
        own = own_flag(name)
        return own if own in flags else name

    command.context_settings["token_normalize_func"] = known
    return command


class _LazyGroup(LightGroup):
    """A group whose help names its commands without importing them."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _LazyCommands()

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return commands_that_begin(incomplete, COMMANDS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(
    cls=_LazyGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from llmgen.cli.common.machine import versions

        print(versions())
        raise typer.Exit


@app.callback(invoke_without_command=True)
def llmgen(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show versions and exit.")
    ] = False,
) -> None:
    """Run GGUF language models on this computer's CPU.

    MODEL is the path of a .gguf file, a name that `llmgen list` shows, or hf.co/OWNER/REPO[:TYPE].
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


def run() -> None:
    """Parse the command line and run the command; errors are for the caller to report."""
    program = typer.main.get_command(app)
    if "_LLMGEN_COMPLETE" in os.environ:
        with whole_words():
            program.main(prog_name="llmgen")
    # Not main() otherwise: it has its own handling of errors, Ctrl-C and closed pipes.
    with program.make_context("llmgen", sys.argv[1:]) as context:
        program.invoke(context)
