"""Checks of the values of options; each check returns a plain value.

Importing this module loads no numpy.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any, cast

from llmgen.errors import UsageError, kind_of, shown
from llmgen.sampling.interfaces import Constraint, Processor

SAMPLER_NAMES = (
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
)
"""The samplers in their default order, which is llama.cpp's (common/common.h)."""

MAX_INT = 2**31 - 1


def flag(name: str) -> str:
    """The name of a field on the command line."""
    return "--" + name.replace("_", "-")


def _refuse(name: str, expected: str, value: object) -> UsageError:
    return UsageError(f"{name} ({flag(name)}) must be {expected}, not {shown(value)}")


def _grouped(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:,.15g}"


def checked_number(name: str, value: Any, default: Any, low: float, high: float) -> int | float | None:
    """The value as a plain int or float, within its range."""
    if value is None and default is None:
        return None
    whole = (default is None and name != "timeout") or isinstance(default, int)
    kind = "a whole number" if whole else "a number"
    expected = f"{kind} from {_grouped(low)} to {_grouped(high)}"
    if high >= MAX_INT and not (isinstance(value, (int, float)) and value > high):
        expected = f"{kind} of at least {low:g}"
    if isinstance(value, (bool, str)):
        raise _refuse(name, expected, value)
    try:
        number = operator.index(value) if whole else float(value)
    except (TypeError, ValueError, OverflowError):
        raise _refuse(name, expected, value) from None
    if not low <= number <= high:  # NaN is in no range
        raise _refuse(name, expected, value)
    return number


def _texts(name: str, value: Any) -> tuple[str, ...]:
    items = (value,) if isinstance(value, str) else _items(name, "a text or a list of texts", value)
    for item in items:
        if not isinstance(item, str) or not item:
            raise _refuse(name, "a text or a list of texts, none of them empty", item)
    return items


def _token_ids(name: str, value: Any) -> tuple[int, ...]:
    return tuple(_token_id(name, item) for item in _items(name, "a list of token ids", value))


def _token_id(name: str, value: Any) -> int:
    try:
        token = operator.index(value)
    except TypeError:
        token = -1
    if not 0 <= token <= MAX_INT or isinstance(value, bool):
        raise _refuse(name, "made of token ids from 0 up", value)
    return token


def _id_or_text(name: str, value: Any) -> int | str:
    if isinstance(value, str):
        if not value:
            raise _refuse(name, "made of token ids and texts that are not empty", value)
        return value
    return _token_id(name, value)


def _ids_or_texts(name: str, value: Any) -> tuple[int | str, ...]:
    if isinstance(value, str):
        value = (value,)
    return tuple(_id_or_text(name, item) for item in _items(name, "a list of token ids and texts", value))


def _bias(name: str, value: Any) -> tuple[tuple[int | str, float], ...]:
    expected = "a mapping from token ids or texts to numbers from -1000 to 1000, or -inf for a ban"
    pairs = value.items() if isinstance(value, Mapping) else _items(name, expected, value)
    checked = []
    for pair in pairs:
        try:
            token, bias = pair
            bias = float(bias)
        except (TypeError, ValueError):
            raise _refuse(name, expected, value) from None
        except OverflowError:  # a whole number beyond all floats
            raise _refuse(name, expected, bias) from None
        if not (-1000 <= bias <= 1000 or bias == -math.inf):
            raise _refuse(name, expected, bias)
        checked.append((_id_or_text(name, token), bias))
    return tuple(checked)


def _samplers(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(";") if part.strip()]
    order = _items(name, "a list of sampler names", value)
    for sampler in order:
        if sampler not in SAMPLER_NAMES:
            raise _refuse(name, f"made of {', '.join(SAMPLER_NAMES)}", sampler)
    if len(set(order)) < len(order):
        raise _refuse(name, "a list that names each sampler once", ";".join(order))
    return order


def _items(name: str, expected: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)):
        return tuple(value)
    raise _refuse(name, expected, value)


def _yes_or_no(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _refuse(name, "true or false", value)
    return value


def _one_of(*choices: str) -> Any:
    def check(name: str, value: Any) -> str:
        if value not in choices:
            raise _refuse(name, " or ".join(choices), value)
        return cast(str, value)

    return check


def _constraint(name: str, value: Any) -> Constraint | None:
    if value is None or isinstance(value, Constraint):
        return value
    expected = "None or an object with the methods allowed(), accept(token) and fork()"
    raise UsageError(f"{name} must be {expected}, not {kind_of(value)}")


def _processors(name: str, value: Any) -> tuple[Processor, ...]:
    found = value if isinstance(value, Iterable) and not callable(value) else [value]
    items = tuple(found)
    for item in items:
        if not callable(item):
            raise UsageError(f"{name} must be a function or a list of functions, not {kind_of(item)}")
    return items


CHECKS: dict[str, Any] = {
    "dry_sequence_breakers": _texts,
    "logit_bias": _bias,
    "banned_tokens": _ids_or_texts,
    "samplers": _samplers,
    "stop": _texts,
    "stop_token_ids": _token_ids,
    "ignore_eos": _yes_or_no,
    "context_full": _one_of("stop", "shift"),
    "logprobs_mode": _one_of("raw", "processed"),
    "constraint": _constraint,
    "processors": _processors,
}
"""The check of each option that is not a number: called with name and value, returns the plain value."""
