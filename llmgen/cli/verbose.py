"""``--verbose``: what the library logs, with the time since the start, on stderr."""

from __future__ import annotations

import logging
import sys
import time
from typing import Annotated

import typer

from llmgen.cli.output import visible

VerboseOption = Annotated[bool, typer.Option("--verbose", help="Log what happens, with timings, on stderr.")]


class _Handler(logging.Handler):
    """Writes a record as ``12.345 s  message``."""

    def __init__(self) -> None:
        super().__init__()
        self._started = time.perf_counter()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            elapsed = time.perf_counter() - self._started
            print(f"{elapsed:8.3f} s  {visible(record.getMessage())}", file=sys.stderr, flush=True)
        except (OSError, ValueError):
            pass


def log_if(verbose: bool) -> None:
    """Show the log of the ``llmgen`` package from here on, where that is wanted."""
    if verbose:
        logger = logging.getLogger("llmgen")
        logger.addHandler(_Handler())
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        import numpy

        logger.debug("python %s, numpy %s", sys.version.split()[0], numpy.__version__)
