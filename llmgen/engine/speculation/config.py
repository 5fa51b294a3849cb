"""How tokens are guessed: the options.  Importing this loads no numpy."""

from __future__ import annotations

from dataclasses import dataclass, fields
from os import PathLike
from typing import Any, Literal, get_args

from llmgen.arguments import whole_number, yes_or_no
from llmgen.errors import UsageError, shown

Method = Literal["coupled", "reject"]

MOST_GUESSES = 8
"""Tokens of one run."""


@dataclass(frozen=True)
class SpeculativeConfig:
    """Who guesses, how many tokens a step, and how guesses are judged.

    ``draft``: the path or name of a smaller model with the same vocabulary.  ``lookup``: guess
    what followed the last few tokens when they occurred before, in the prompt or the answer.
    With both, the draft is asked where the text did not occur before.

    ``k``: tokens to guess at a step.  ``adaptive`` lets the number follow how many are accepted and
    what steps cost, from 0 to ``k_max``; ``k`` is then only what it tries first, after single guesses have shown
    what they cost.  ``extra_token``: a step whose guesses are all right gives one token more.
    ``min_acceptance``: where a smaller share of the guesses is right, pause, and try again later.

    ``method``: ``coupled`` accepts a guess if it is the token that would have been chosen
    without it, so that the text stays the same; ``reject`` is rejection sampling, which
    accepts more and keeps the distribution only (arXiv:2211.17192).
    """

    draft: str | PathLike[str] | None = None
    lookup: bool = False
    k: int = 4
    k_max: int = MOST_GUESSES
    adaptive: bool = True
    extra_token: bool = True
    min_acceptance: float = 0.0
    method: Method = "coupled"

    def __post_init__(self) -> None:
        for name in ("k_max", "k"):
            number = whole_number(_with_flag(name), getattr(self, name), 1, MOST_GUESSES)
            object.__setattr__(self, name, number)
        for name in ("lookup", "adaptive", "extra_token"):
            yes_or_no(_with_flag(name), getattr(self, name))
        share = self.min_acceptance
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
            raise _refuse("min_acceptance", "a number from 0 to 1", share)
        if self.method not in get_args(Method):
            raise _refuse("method", "coupled or reject", self.method)
        if self.draft is not None and not isinstance(self.draft, (str, PathLike)):
            raise _refuse("draft", "the path or the name of a model", self.draft)

    @property
    def guesses(self) -> bool:
        """Whether there is anything that guesses."""
        return self.lookup or self.draft is not None


_FLAGS = {
    "draft": "--draft",
    "lookup": "--lookup",
    "k_max": "--draft-max",
    "min_acceptance": "--draft-min-acceptance",
    "method": "--draft-method",
}


def _refuse(name: str, expected: str, value: object) -> UsageError:
    return UsageError(f"{_with_flag(name)} must be {expected}, not {shown(value)}")


def _with_flag(name: str) -> str:
    """A field with its option on the command line, where it has one."""
    return f"{name} ({_FLAGS[name]})" if name in _FLAGS else name


def speculative_config(
    draft: str | PathLike[str] | None, lookup: bool, config: SpeculativeConfig | None
) -> SpeculativeConfig | None:
    """The options of a model that is opened with these; None where nothing is to be guessed.

    ``draft`` and ``lookup`` are short for the fields of ``config``.  Raises UsageError for options of
    guessing where nothing guesses.
    """
    if config is not None and not isinstance(config, SpeculativeConfig):
        raise UsageError(
            f"speculation must be a SpeculativeConfig, not {type(config).__name__}: write"
            " SpeculativeConfig(lookup=True), for example"
        )
    given: dict[str, Any] = (
        {f.name: getattr(config, f.name) for f in fields(SpeculativeConfig)} if config else {}
    )
    if draft is not None:
        given["draft"] = draft
    if lookup is not False:
        given["lookup"] = lookup
    chosen = SpeculativeConfig(**given)
    if chosen.guesses:
        return chosen
    if config is not None:
        raise UsageError("speculation has nothing to guess with: give it a draft model, or lookup=True")
    return None
