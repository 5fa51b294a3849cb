"""Commands whose parameters are put together from parts: Typer reads them from the signature."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterable
from typing import Any


def parameters_of(command: Callable[..., None], without: str = "") -> list[inspect.Parameter]:
    """The parameters of a command with their annotations evaluated; all but the one named ``without``."""
    hints = typing.get_type_hints(command, include_extras=True)
    return [
        parameter.replace(annotation=hints.get(parameter.name, parameter.annotation))
        for parameter in inspect.signature(command).parameters.values()
        if parameter.name != without
    ]


def option(name: str, annotation: Any, default: Any = False) -> inspect.Parameter:
    """A keyword parameter."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def with_parameters(
    command: Callable[..., None], parameters: Iterable[inspect.Parameter]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate what is called in place of ``command``: it gets its name and its help, and these parameters."""

    def decorate(replacement: Callable[..., None]) -> Callable[..., None]:
        functools.update_wrapper(replacement, command)
        del replacement.__wrapped__  # type: ignore[attr-defined]  # Typer would read that one's signature
        signature = inspect.Signature(list(parameters))
        replacement.__signature__ = signature  # type: ignore[attr-defined]
        replacement.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        return replacement

    return decorate
