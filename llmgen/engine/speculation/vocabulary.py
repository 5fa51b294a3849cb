"""Whether two models have the same vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmgen.errors import UsageError, shown

_TOKENS, _TYPES, _KIND = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.model"
_UNUSED = 5  # tokenizer.ggml.token_type of the places that fill a vocabulary up to a round number


def check_vocabularies(metadata: Mapping[str, Any], draft_metadata: Mapping[str, Any]) -> None:
    """Refuse a draft model with another vocabulary, by the metadata of both files.

    One may have more tokens at the end, as long as they are unused.  Raises UsageError with
    the first difference.
    """
    kinds = metadata.get(_KIND), draft_metadata.get(_KIND)
    if kinds[0] != kinds[1]:
        raise _differs(f"its tokenizer is {shown(kinds[1])}, the model's {shown(kinds[0])}")
    ours, theirs = list(metadata.get(_TOKENS) or ()), list(draft_metadata.get(_TOKENS) or ())
    for i, (our, their) in enumerate(zip(ours, theirs, strict=False)):
        if our != their:
            raise _differs(f"token {i} is {shown(their)} there and {shown(our)} here")
    ours_longer = len(ours) > len(theirs)
    longer, tokens = (metadata, ours) if ours_longer else (draft_metadata, theirs)
    for i in range(min(len(ours), len(theirs)), len(tokens)):
        types = longer.get(_TYPES)
        if types is None or i >= len(types) or types[i] != _UNUSED:
            whose = "the model" if ours_longer else "the draft"
            raise _differs(f"only {whose} has token {i}, {shown(tokens[i])}")


def _differs(how: str) -> UsageError:
    return UsageError(
        f"the draft model (--draft) has another vocabulary: {how}; choose a smaller model of the same family"
    )
