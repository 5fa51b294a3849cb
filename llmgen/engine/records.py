"""Dataclasses from JSON, every value checked: a file may have been edited, damaged or written by another version."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import cache
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from llmgen.model.kv_config import KVCacheConfig

T = TypeVar("T")
_MOST_BITS = 63

_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


def record(cls: type[T], values: object) -> T:
    """The object whose fields, all of them and no others, are the members of a JSON object.

    A field is a whole number, a finite number, a truth value, printable text, a kind of KV cache as its text, another
    dataclass, a tuple of any length of these, or None where its type says so.  Raises ValueError for anything else.
    """
    types = _hints(cls)
    if not isinstance(values, dict) or values.keys() != types.keys():
        raise ValueError(f"not the fields of {cls.__name__}")
    return cls(**{name: _checked(kind, values[name]) for name, kind in types.items()})


def _checked(kind: Any, value: Any) -> Any:
    if NoneType in get_args(kind):
        [kind] = [other for other in get_args(kind) if other is not NoneType]
        return None if value is None else _checked(kind, value)
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(_checked(get_args(kind)[0], item) for item in value)
    if kind is KVCacheConfig and isinstance(value, str):
        return KVCacheConfig.of(value)
    if is_dataclass(kind) and isinstance(kind, type):
        return record(kind, value)
    if not _fits(kind, value):
        raise ValueError(f"{value!r:.50} is no {kind}")
    return value


def _fits(kind: Any, value: Any) -> bool:
    if type(value) is int:
        return kind in (int, float) and value.bit_length() <= _MOST_BITS
    if type(value) is float:
        return kind is float and math.isfinite(value)
    return type(value) is kind and (kind is not str or value.isprintable())
