"""How much goes to stderr: ``--verbose`` adds the library's log with the time since the start,
``--quiet`` leaves only errors."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from llmgen.cli.common.machine import versions
from llmgen.cli.common.signatures import option, parameters_of, with_parameters
from llmgen.cli.terminal.output import note
from llmgen.cli.terminal.settings import be_quiet, is_quiet
from llmgen.errors import UsageError
from llmgen.visible import visible

VerboseOption = Annotated[bool, typer.Option("--verbose", help="Log details and timings on stderr.")]


QuietOption = Annotated[
    bool,
    typer.Option("-q", "--quiet", help="Print only errors on stderr: no notes, warnings or progress."),
]


class _Handler(logging.Handler):
    """Writes a record as ``12.345 s  message``."""

    def __init__(self) -> None:
        super().__init__()
        self._started = time.perf_counter()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            elapsed = time.perf_counter() - self._started
            note(f"{elapsed:8.3f} s  {visible(record.getMessage())}")
        except (OSError, ValueError):
            pass


def with_volume(command: Callable[..., None], quiet: bool = True, below: bool = False) -> Callable[..., None]:
    """Give a command ``--verbose``, and ``--quiet`` where it can be, after its own options.

    ``below``: a command of a group is quiet where the group is.  One that has the options is
    returned as it is.
    """
    if "verbose" in inspect.signature(command).parameters:
        return command
    added = [option("quiet", QuietOption)] if quiet else []
    added.append(option("verbose", VerboseOption))

    @with_parameters(command, [*parameters_of(command), *added])
    def with_options(*args: Any, verbose: bool, quiet: bool = False, **values: Any) -> None:
        if verbose and quiet:
            raise UsageError("--verbose and --quiet exclude each other; give one of them")
        if verbose:
            _log()
        be_quiet(quiet or (below and is_quiet()))
        command(*args, **values)

    return with_options


def _log() -> None:
    """Show the log of the ``llmgen`` package from here on."""
    logger = logging.getLogger("llmgen")
    if any(isinstance(handler, _Handler) for handler in logger.handlers):
        return  # an earlier run of the same options file
    logger.addHandler(_Handler())
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.debug("%s", ", ".join(versions().splitlines()))
