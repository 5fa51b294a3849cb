"""Biases and bans: what the options say about single tokens, as token ids."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from llmgen.errors import UsageError
from llmgen.sampling.params import SamplingParams
from llmgen.tokenizer.interfaces import TokenizerLike


def vocabulary_ids(ids: Collection[int], n_vocab: int) -> NDArray[np.int64]:
    """Sorted distinct ids; those outside the vocabulary can never occur and are left out."""
    return np.array(sorted({i for i in ids if 0 <= i < n_vocab}), dtype=np.int64)


def _ids_of(item: int | str, option: str, n_vocab: int, tokenizer: TokenizerLike | None) -> list[int]:
    """The token ids that a token id or a text stands for."""
    if isinstance(item, int):
        if item >= n_vocab:
            raise UsageError(
                f"{option} names token {item}, but this model's tokens go from 0 to {n_vocab - 1}"
            )
        return [item]
    if tokenizer is None:
        raise UsageError(f"{option} has the text {item!r}, but this model has no tokenizer: give token ids")
    return tokenizer.encode_fragment(item)


def resolve_bias(
    params: SamplingParams, n_vocab: int, eog: NDArray[np.int64], tokenizer: TokenizerLike | None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """logit_bias, single banned ids and ignore_eos as distinct tokens [m] and their bias [m]."""
    total: dict[int, float] = {}
    for item, bias in params.logit_bias:
        for token in _ids_of(item, "logit_bias (--logit-bias)", n_vocab, tokenizer):
            total[token] = total.get(token, 0.0) + bias
    if params.ignore_eos:
        total.update((int(token), -np.inf) for token in eog)
    return np.array(list(total), dtype=np.int64), np.array(list(total.values()), dtype=np.float64)


def resolve_bans(params: SamplingParams, n_vocab: int, tokenizer: TokenizerLike | None) -> list[list[int]]:
    """The sequences of tokens that may not be generated."""
    option = "banned_tokens (--banned-tokens)"
    found = [_ids_of(item, option, n_vocab, tokenizer) for item in params.banned_tokens]
    return [sequence for sequence in found if sequence]


def banned_next(history: NDArray[np.int64], sequences: list[list[int]]) -> NDArray[np.int64]:
    """The tokens that would complete one of the banned sequences now: int64 [m]."""
    tail = history[-max((len(s) for s in sequences), default=1) :].tolist()
    found = {s[-1] for s in sequences if len(s) == 1 or tail[1 - len(s) :] == s[:-1]}
    return np.array(sorted(found), dtype=np.int64)
