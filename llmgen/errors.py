"""The errors a user can cause.

Every message is one sentence that says what was found, what was expected, and
what to do about it.  The command line prints the message and exits with
``exit_code``; nothing else in the package prints.
"""

from __future__ import annotations


class LLMGenError(Exception):
    """Base of every error that a user's input, file or machine can cause."""

    exit_code = 1


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
