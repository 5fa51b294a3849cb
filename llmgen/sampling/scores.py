"""The log-probabilities that an answer can carry."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token and the natural logarithm of its probability."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenScore:
    """The chosen token's log-probability, and those of the most likely ones."""

    token_id: int
    logprob: float
    top: tuple[TokenLogprob, ...] = ()
