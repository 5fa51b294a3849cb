"""The hub's settings: HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE ..., as huggingface_hub reads them."""

from __future__ import annotations

from types import ModuleType

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
