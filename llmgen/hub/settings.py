"""The hub's settings: HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE ..., as huggingface_hub reads them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from llmgen.errors import UsageError


def constants() -> ModuleType:
    """The settings by huggingface_hub's names.  Raises UsageError where a variable is not what it should be."""
    try:
        from huggingface_hub import constants
    except ValueError as error:
        raise UsageError(
            f"one of the variables HF_ENDPOINT and HF_HUB_... cannot be read: {error}; correct it, or unset it"
        ) from None
    return constants


@contextmanager
def no_telemetry() -> Iterator[None]:
    """Ask the hub for nothing but what llmgen asks for.

    huggingface_hub describes the caller with each request, and once a day fetches the list of
    coding agents that it looks for (``utils/_detect_agent.py`` in 2.4), unless telemetry is off.
    A process that uses huggingface_hub itself keeps its own setting.
    """
    settings: Any = constants()
    before = settings.HF_HUB_DISABLE_TELEMETRY
    settings.HF_HUB_DISABLE_TELEMETRY = True
    try:
        yield
    finally:
        settings.HF_HUB_DISABLE_TELEMETRY = before
