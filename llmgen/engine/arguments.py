"""Checks of arguments that calls of the Python API share.  Importing this loads no numpy."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeVar

from llmgen.errors import UsageError, kind_of, shown

F = TypeVar("F", bound=Callable[..., object])


def whole_number(name: str, value: Any, low: int, high: int | None = None) -> int:
    """A whole number of any integer type, numpy's too, as an int.  Raises UsageError for anything else.

    ``name``: how messages call it, with its option on the command line where it has one.
    """
    try:
        number = low - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = low - 1
    if number >= low and (high is None or number <= high):
        return number
    limits = f"of at least {low}" if high is None else f"from {low} to {high}"
    raise UsageError(f"{name} must be a whole number {limits}, not {shown(value)}")


def yes_or_no(name: str, value: Any) -> bool:
    """True or False.  Raises UsageError for anything else."""
    if isinstance(value, bool):
        return value
    raise UsageError(f"{name} must be True or False, not {shown(value)}")


def checked_function(name: str, function: F | None, takes: str) -> F | None:
    """The function, or None.  Raises UsageError for what cannot be called; ``takes`` says what it is called with."""
    if function is None or callable(function):
        return function
    raise UsageError(f"{name} must be a function that takes {takes}, not {kind_of(function)}")
