"""Command-line arguments as the text that was typed; empty names of files are refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from llmgen.cli.common.signatures import parameters_of, with_parameters
from llmgen.cli.common.texts import decoded
from llmgen.errors import UsageError

_NAME_FILES = ("MODEL", "MODEL...", "FILE|NAME")


def reading_texts(command: Callable[..., None]) -> Callable[..., None]:
    """Have a command's texts read as UTF-8, whatever the locale.

    Python decodes arguments with the locale's encoding and turns what does not fit into lone
    surrogates, which no tokenizer accepts.  File names stay as they are, since they go back
    to the system; an empty one is refused.
    """
    parameters = parameters_of(command)
    for parameter in parameters:
        if _is_path(parameter.annotation):
            _refuse_empty(_info(parameter.annotation), _shown_name(parameter.name, parameter.annotation))
    texts = [parameter for parameter in parameters if not _names_file(parameter.annotation)]
    names = {parameter.name: _shown_name(parameter.name, parameter.annotation) for parameter in texts}

    @with_parameters(command, parameters)
    def with_texts(*args: Any, **values: Any) -> None:
        command(*args, **{name: _as_text(value, names.get(name)) for name, value in values.items()})

    return with_texts


def _is_path(hint: Any) -> bool:
    """Whether a parameter is a path, several, or perhaps one."""
    return hint is Path or any(map(_is_path, get_args(hint)[:1]))


def _refuse_empty(info: Any, name: str) -> None:
    """Have a parameter refuse an empty name, which as a path would mean the current folder."""

    def path(typed: Any) -> Path:
        if typed == "":
            raise UsageError(f"{name} is empty, expected the name of a file")
        return Path(typed)

    info.parser, info.metavar = path, info.metavar or "FILE"


def _as_text(value: Any, name: str | None) -> Any:
    """The value with its text decoded again; a value without a ``name``, or that is not text, stays as it is."""
    if name is None:
        return value
    if isinstance(value, list):
        return [_as_text(item, name) for item in value]
    return _utf8(value, name) if type(value) is str else value


def _utf8(typed: str, name: str) -> str:
    """The text of an argument.  Raises UsageError where its bytes are not UTF-8."""
    try:
        data = os.fsencode(typed)
    except UnicodeEncodeError:  # from an options file, which was UTF-8, while the locale's encoding is less
        return typed
    return decoded(data, name)


def _info(hint: Any) -> Any:
    """Typer's description of a parameter."""
    return next((item for item in getattr(hint, "__metadata__", ()) if hasattr(item, "param_decls")), None)


def _names_file(hint: Any) -> bool:
    return getattr(_info(hint), "metavar", None) in _NAME_FILES


def _shown_name(name: str, hint: Any) -> str:
    """What the help calls it."""
    info = _info(hint)
    if type(info).__name__ == "ArgumentInfo":
        return str(info.metavar or name.upper())
    return "--" + name.replace("_", "-")
