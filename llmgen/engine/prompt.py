"""Prompts: from a text or token ids to what a model accepts, with a clear error for everything else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmgen.engine.interfaces import ModelLike, TokenizerLike
from llmgen.errors import ContextFullError, UnsupportedModelError, UsageError
from llmgen.model.runs import token_ids

Prompt = str | Sequence[int] | NDArray[np.integer[Any]]
"""A text, completed as it stands, or token ids."""


def prompt_ids(
    prompt: Prompt, model: ModelLike, tokenizer: TokenizerLike | None, *, parse_special: bool = False
) -> list[int]:
    """The token ids of a prompt.  Raises an LLMGenError if the model cannot take them."""
    if not isinstance(prompt, str):
        return check_prompt(prompt, model)
    if tokenizer is None:
        raise UsageError("the prompt is a text, but this model has no tokenizer: give token ids")
    return check_prompt(tokenizer.encode_prompt(prompt, parse_special=parse_special), model)


def check_prompt(prompt_ids: Sequence[int] | NDArray[np.integer[Any]], model: ModelLike) -> list[int]:
    """The prompt as a list of ints, refused where the model cannot take it."""
    ids: list[int] = token_ids(prompt_ids, int(model.config.vocab_size)).tolist()
    n_ctx = int(model.n_ctx)
    if len(ids) > n_ctx:
        raise ContextFullError(_too_long(len(ids), n_ctx, int(getattr(model.config, "reach", n_ctx))))
    return ids


def check_writes(model: ModelLike) -> None:
    """Raises UnsupportedModelError for a model that does not generate token by token."""
    if not getattr(model.config, "causal", True):
        raise UnsupportedModelError(
            f"{model.config.architecture} models write by diffusion, which fills in masked tokens, and llmgen only "
            "computes their logits (LLM.logits); use a model that writes token by token"
        )


def _too_long(n: int, n_ctx: int, trained: int) -> str:
    found = f"the prompt has {n} tokens, but the context holds {n_ctx}: "
    if n_ctx < trained:
        return found + f"shorten it, or raise --ctx (n_ctx), for which this model allows up to {trained}"
    return found + f"shorten it (this model was made for {trained}; --ctx (n_ctx) sets the context's length)"
