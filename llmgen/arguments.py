"""Checks of arguments that calls of the Python API share.  Importing this loads no numpy."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable
from contextlib import suppress
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


def real_number(name: str, value: Any, low: float, high: float = math.inf) -> float:
    """A finite number of any type, numpy's too, as a float.  Raises UsageError for anything else."""
    if not isinstance(value, bool) and isinstance(value, numbers.Real):
        with suppress(OverflowError):  # of an integer that no float reaches
            number = float(value)
            if math.isfinite(number) and low <= number <= high:
                return number
    limits = f"of at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
    raise UsageError(f"{name} must be a number {limits}, not {shown(value)}")


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
