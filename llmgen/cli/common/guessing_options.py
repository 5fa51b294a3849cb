"""How tokens are guessed: --draft, --lookup and what belongs to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmgen.cli.common.options import flag_parameter, with_options
from llmgen.engine.speculation.config import MOST_GUESSES, SpeculativeConfig
from llmgen.errors import UsageError

_DRAFT_HELP = "a smaller model with the same vocabulary, which guesses tokens"
_LOOKUP_HELP = "guess what followed the same words before, in the prompt or the answer"
_PAUSE_HELP = "pause where a smaller share of the guesses is right"


def guessing_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter ``guessing`` by --draft, --lookup and what belongs to them."""
    most, method = "most tokens to guess at a step", "coupled keeps the text, reject only its distribution"
    options = [
        flag_parameter("draft", str, _DRAFT_HELP, "", metavar="MODEL"),
        flag_parameter("lookup", bool, _LOOKUP_HELP, ""),
        flag_parameter("draft_max", int, most, str(MOST_GUESSES), metavar="N"),
        flag_parameter("draft_min_acceptance", float, _PAUSE_HELP, "0", metavar="SHARE"),
        flag_parameter("draft_method", str, method, "coupled", metavar="coupled|reject"),
    ]
    return with_options(command, "guessing", options, lambda values: _guessing(**values))


def _guessing(
    draft: str | None,
    lookup: bool,
    draft_max: int | None,
    draft_min_acceptance: float | None,
    draft_method: str | None,
) -> SpeculativeConfig | None:
    """Make the options of guessing from the flags; None where nothing is to be guessed."""
    further = {"k_max": draft_max, "min_acceptance": draft_min_acceptance, "method": draft_method}
    given: dict[str, Any] = {name: value for name, value in further.items() if value is not None}
    if draft_max is not None:
        given["k"] = min(SpeculativeConfig.k, draft_max)
    config = SpeculativeConfig(draft=draft, lookup=lookup, **given)
    if given and not config.guesses:
        flag = next(flag for name, flag in _GUESSING_FLAGS.items() if name in given)
        raise UsageError(f"{flag} belongs to guessing; add --draft MODEL or --lookup, or leave it out")
    return config if config.guesses else None


_GUESSING_FLAGS = {
    "k_max": "--draft-max",
    "min_acceptance": "--draft-min-acceptance",
    "method": "--draft-method",
}
