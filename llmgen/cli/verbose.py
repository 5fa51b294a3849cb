"""``--verbose`` of every command: what the library logs, with the time since the start, on stderr."""

from __future__ import annotations

import functools
import inspect
import logging
import time
import typing
from collections.abc import Callable
from typing import Annotated, Any

import typer

from llmgen.cli.output import note, visible
from llmgen.cli.versions import versions

VerboseOption = Annotated[bool, typer.Option("--verbose", help="Log what happens, with timings, on stderr.")]


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


def with_verbose(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command ``--verbose``, after its own options."""
    hints = typing.get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(annotation=hints.get(parameter.name, parameter.annotation))
        for parameter in inspect.signature(command).parameters.values()
    ]
    added = inspect.Parameter(
        "verbose", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=VerboseOption
    )

    @functools.wraps(command)
    def logged(*args: Any, verbose: bool, **values: Any) -> None:
        if verbose:
            _log()
        command(*args, **values)

    del logged.__wrapped__  # Typer must see this signature, not that one
    logged.__signature__ = inspect.Signature([*own, added])  # type: ignore[attr-defined]
    logged.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, added)}
    return logged


def _log() -> None:
    """Show the log of the ``llmgen`` package from here on."""
    logger = logging.getLogger("llmgen")
    if any(isinstance(handler, _Handler) for handler in logger.handlers):
        return  # a run before this one, of the same file
    logger.addHandler(_Handler())
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.debug("%s", ", ".join(versions().splitlines()))
