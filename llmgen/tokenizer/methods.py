"""The methods of text, lists and dictionaries that a template may call, and what each may cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmgen.tokenizer.budget import Budget, OverBudget

LIST_CHANGES = frozenset(["append", "extend", "insert", "pop", "remove"])
"""Methods that change a list; allowed only on lists that the template has made."""

_TEXT = frozenset(
    "capitalize casefold center count endswith expandtabs find format format_map index isalnum isalpha "
    "isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust "
    "lower lstrip partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip "
    "split splitlines startswith strip swapcase title translate upper zfill".split()
)
_ALLOWED: tuple[tuple[type | tuple[type, ...], frozenset[str]], ...] = (
    (str, _TEXT),
    (list, LIST_CHANGES | {"copy", "count", "index"}),
    (dict, frozenset(["copy", "get", "items", "keys", "values"])),
    ((tuple, range), frozenset(["count", "index"])),
    ((bytes, bytearray, int, float, complex, set, frozenset), frozenset()),
)
_WIDTHS = ("ljust", "rjust", "center", "zfill")
# Python searches forwards in linear time; searching backwards and stripping take the product of the lengths.
_QUADRATIC = ("strip", "lstrip", "rstrip", "rfind", "rindex", "rsplit", "rpartition")


def check_method(
    budget: Budget,
    method: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    listed: Callable[[Any], list[Any]],
) -> tuple[Any, ...]:
    """Charge a method call to ``budget``; returns the arguments to call it with."""
    name, owner = method.__name__, method.__self__
    for kinds, names in _ALLOWED:
        if isinstance(owner, kinds):
            if name not in names:
                raise OverBudget(f"it used {name}, which templates may not use")
            break
    budget.take(owner)
    if isinstance(owner, str):
        return _check_text(budget, name, owner, args, kwargs, listed)
    if isinstance(owner, list) and name in LIST_CHANGES:
        if name == "extend":
            args = tuple(map(listed, args))
        budget.room(sum(map(budget.weigh, args)))
    return args


def _check_text(
    budget: Budget,
    name: str,
    owner: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    listed: Callable[[Any], list[Any]],
) -> tuple[Any, ...]:
    if name in _WIDTHS:
        for value in (*args, *kwargs.values()):
            budget.width(value)
    elif name in _QUADRATIC:
        longest = max(
            (len(value) for value in (*args, *kwargs.values()) if isinstance(value, str)), default=1
        )
        budget.work(len(owner) * longest)
    match name, args:
        case "replace", (str() as old, str() as new, *_):
            budget.replaced(owner, old, new)
        case "join", (parts,):
            parts = listed(parts)
            budget.joined(owner, parts)
            return (parts,)
        case "expandtabs", _:
            size = next(iter((*args, *kwargs.values())), 8)
            budget.width(size)
            budget.room(len(owner) + owner.count("\t") * max(size, 0))
        case "translate", (table,):
            budget.room(len(owner) * (1 + budget.weigh(table)))
    return args
