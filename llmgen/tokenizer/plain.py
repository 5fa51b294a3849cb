"""Conversations as plain data: a caller's objects copied to what a template may be given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set, ValuesView
from enum import Enum
from typing import Any

from llmgen.errors import TemplateError, UsageError, kind_of

Message = Mapping[str, Any]

_BYTES = (bytes, bytearray, memoryview)


def plain_messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """A conversation as plain dicts.  Raises UsageError for anything but a list of messages."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Iterable):
        raise UsageError(
            f'messages must be a list, such as [{{"role": "user", "content": "Hi"}}], not {kind_of(messages)}'
        )
    return [_message(index, message) for index, message in enumerate(messages)]


def _message(index: int, message: Any) -> dict[str, Any]:
    made = plain(message)
    if not isinstance(made, dict) or "role" not in made:
        found = (
            f"a dict without a role ({', '.join(made) or 'empty'})"
            if isinstance(made, dict)
            else kind_of(message)
        )
        raise UsageError(f"messages[{index}] must be a dict with role and content, not {found}")
    if not isinstance(message, Mapping) and getattr(message, "content", made) is None:
        made["content"] = None  # of an object's fields without a value only this one is kept
    return made


def plain_list(name: str, items: Any) -> list[dict[str, Any]]:
    """``tools`` or ``documents`` as plain dicts.  Raises UsageError."""
    form = "JSON schemas of functions" if name == "tools" else "dicts"
    if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
        raise UsageError(f"{name} must be a list of {form}, not {kind_of(items)}")
    made = []
    for index, item in enumerate(items):
        found = None if callable(item) else plain(item)
        if not isinstance(found, dict):
            raise UsageError(f"{name}[{index}] must be a dict, one of a list of {form}, not {kind_of(item)}")
        made.append(found)
    return made


def plain(value: Any) -> Any:
    """A copy made of dicts, lists and simple values only, so a template can reach nothing else."""
    try:
        return _copied(value)
    except RecursionError:
        raise TemplateError(
            "a message contains itself or is nested too deeply, expected plain data"
        ) from None


def _copied(value: Any) -> Any:
    if isinstance(value, Enum):
        return _copied(value.value)
    if isinstance(value, str):
        return str.__str__(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(_copied(key)): _copied(item) for key, item in value.items()}
    if isinstance(value, (Sequence, Set, Iterator, ValuesView)) and not isinstance(value, _BYTES):
        return [_copied(item) for item in value]
    if not isinstance(value, type) and callable(dump := getattr(value, "model_dump", None)):
        # Pydantic's objects, as the openai package returns them; fields without a value would be there as None.
        return _copied(dump(mode="json", exclude_none=True))
    if callable(value):
        return value  # replaces one of our functions, such as strftime_now
    raise TemplateError(
        f"a message holds {kind_of(value)}, expected text, numbers, lists and dictionaries;"
        " convert it to one of these"
    )
