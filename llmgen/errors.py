"""The errors that a user can cause.

Every message is one sentence that says what was found, what was expected, and
what to do about it.  The command line prints the message and exits with
``exit_code``; nothing else in the package prints.

Messages name things that strangers wrote: keys, tensors, paths, values of a file.  Such
text goes through ``shown`` into a message, and every message through ``one_line``, so that
none is longer than a screen, breaks the line or reaches a terminal as a control sequence.
"""

from __future__ import annotations

from typing import Any

from llmgen.visible import visible

_LONGEST_MESSAGE = 2000
_LONGEST_VALUE = 120
_LONGEST_NUMBER_BITS = 256


def one_line(text: str, limit: int = _LONGEST_MESSAGE) -> str:
    """``text`` on one line, escaped, and without its middle where it is longer than ``limit`` characters."""
    return _without_middle(visible(_without_middle(text, limit)), limit)


def _without_middle(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    end = limit // 3  # the end says what to do
    return f"{text[: limit - end - 1]}\u2026{text[-end:]}"


def shown(value: Any, limit: int = _LONGEST_VALUE, quote: bool = True) -> str:
    """A value from a file or a user, for a message: escaped, and cut after ``limit`` characters.

    Text is quoted unless ``quote`` is false; an array or a mapping is described by its length.
    """
    if isinstance(value, (bytes, bytearray)):
        value = value[: limit + 1].decode("utf-8", "backslashreplace")
    if isinstance(value, str):
        text = visible(value[:limit]) + ("..." if len(value) > limit else "")
        return f"'{text}'" if quote else text
    if isinstance(value, int) and value.bit_length() > _LONGEST_NUMBER_BITS:
        return f"a number of {value.bit_length():,} bits"
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    if hasattr(value, "__len__"):
        what = "a mapping" if hasattr(value, "keys") else "an array"
        return f"{what} of {len(value):,} value{'s' * (len(value) != 1)}"
    return f"a value of the type {type(value).__name__}"


def kind_of(value: Any) -> str:
    """What a value of the wrong kind is, for a message: 'a text', 'None', 'an int'."""
    if value is None or isinstance(value, str):
        return "None" if value is None else "a text"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    if name == "bytes":
        return name
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


class LLMGenError(Exception):
    """Base of every error that a user's input, file or machine can cause."""

    exit_code = 1

    def __init__(self, *args: object) -> None:
        """``args``: the message, which is made to fit one line."""
        super().__init__(*(one_line(arg) if isinstance(arg, str) else arg for arg in args))


class ModelFileError(LLMGenError):
    """The model file is missing, damaged, or not a GGUF file."""


class UnsupportedModelError(LLMGenError):
    """The file is sound, but llmgen cannot run what is in it."""


class TokenizerError(LLMGenError):
    """Text cannot be turned into tokens (no vocabulary, unknown kind ...)."""


class TemplateError(LLMGenError):
    """The chat template failed, or refused the conversation."""


class ContextFullError(LLMGenError):
    """The tokens do not fit into the context."""


class KernelError(LLMGenError):
    """The compiled kernels cannot be built or loaded on this machine."""


class DownloadError(LLMGenError):
    """A model could not be fetched."""


class UsageError(LLMGenError):
    """Options that are unknown, out of range, or contradict one another."""

    exit_code = 2


class Interrupted(LLMGenError):
    """A running computation was stopped from outside (Ctrl-C, a cancel token)."""

    exit_code = 130
