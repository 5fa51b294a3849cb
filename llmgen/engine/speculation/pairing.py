"""Which models tokens can be guessed for, and which can draft for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmgen.errors import UsageError, shown
from llmgen.model.decoder import Decoder
from llmgen.model.states import Recurrent

_TOKENS, _TYPES, _KIND = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.model"
_UNUSED = 5  # tokenizer.ggml.token_type of the places that fill a vocabulary up to a round number


def check_target(model: Decoder) -> None:
    """Refuse a model that tokens cannot be guessed for.  Raises UsageError."""
    if _recurrent(model):
        raise UsageError(
            "this model has recurrent states, which cannot take back a wrong guess: leave out the draft model"
            " (--draft) and --lookup"
        )


def check_draft(draft: Decoder) -> None:
    """Refuse a model that cannot guess.  Raises UsageError."""
    if _recurrent(draft):
        raise UsageError(
            "the draft model (--draft) has recurrent states, which cannot take back a wrong guess:"
            " choose a model with attention only"
        )
    if not draft.causal:
        raise UsageError(
            f"the draft model (--draft) is a {draft.architecture} model, which writes by diffusion:"
            " choose a model that writes token by token"
        )


def _recurrent(model: Decoder) -> bool:
    return any(isinstance(state, Recurrent) for state in model.states())


def check_vocabularies(metadata: Mapping[str, Any], draft_metadata: Mapping[str, Any]) -> None:
    """Refuse a draft model with another vocabulary, by the metadata of both files.

    One may have more tokens at the end, as long as they are unused.  Raises UsageError with
    the first difference.
    """
    ours, theirs = metadata.get(_KIND), draft_metadata.get(_KIND)
    if ours != theirs:
        raise _differs(f"its tokenizer is {shown(theirs)}, the model's {shown(ours)}")
    _check_tokens(metadata, draft_metadata)


def _check_tokens(metadata: Mapping[str, Any], draft_metadata: Mapping[str, Any]) -> None:
    ours, theirs = list(metadata.get(_TOKENS) or ()), list(draft_metadata.get(_TOKENS) or ())
    for i, (our, their) in enumerate(zip(ours, theirs, strict=False)):
        if our != their:
            raise _differs(f"token {i} is {shown(their)} there and {shown(our)} here")
    ours_longer = len(ours) > len(theirs)
    longer, tokens = (metadata, ours) if ours_longer else (draft_metadata, theirs)
    types = longer.get(_TYPES)
    for i in range(min(len(ours), len(theirs)), len(tokens)):
        if types is None or i >= len(types) or types[i] != _UNUSED:
            whose = "the model" if ours_longer else "the draft"
            raise _differs(f"only {whose} has token {i}, {shown(tokens[i])}")


def _differs(how: str) -> UsageError:
    return UsageError(
        f"the draft model (--draft) has another vocabulary: {how}; choose a smaller model of the same family"
    )
