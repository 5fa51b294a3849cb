"""Options that several commands share, and how a command gets a group of them as one parameter.

A command that takes such groups is written with one parameter for each:

    @model_options
    @sampling_options
    def command(model: ModelArgument, *, engine: EngineOptions, sampling: SamplingParams) -> None: ...

The decorators (model_options.py, sampling_options.py, guessing_options.py) replace that parameter with the
group's flags.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from llmgen.cli.common.signatures import option as keyword
from llmgen.cli.common.signatures import parameters_of, with_parameters

THREADS_VARIABLE = "LLMGEN_THREADS"
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


def flag_parameter(
    name: str,
    kind: Any,
    help: str,
    shown: str,
    *flags: str,
    metavar: str | None = None,
    envvar: str | None = None,
) -> inspect.Parameter:
    """A keyword parameter as Typer reads it; None (or False) means that it was not given.

    shown: the default as the help shows it; flags: by default the name's.
    """
    text = f"{help[:1].upper()}{help[1:]}" + (f" [default: {shown}]" if shown else "")
    option = typer.Option(
        *flags or ["--" + name.replace("_", "-")],
        help=text,
        show_default=False,
        metavar=metavar,
        envvar=envvar,
    )
    annotation: Any = Annotated[kind if kind is bool else kind | None, option]
    return keyword(name, annotation, False if kind is bool else None)


def with_options(
    command: Callable[..., None],
    group: str,
    options: Sequence[inspect.Parameter],
    build: Callable[[dict[str, Any]], Any],
) -> Callable[..., None]:
    """Put the options in place of the parameter ``group``, which gets what ``build`` makes of them."""

    @with_parameters(command, [*parameters_of(command, without=group), *options])
    def expanded(*args: Any, **values: Any) -> None:
        grouped = {option.name: values.pop(option.name) for option in options}
        command(*args, **values, **{group: build(grouped)})

    return expanded
