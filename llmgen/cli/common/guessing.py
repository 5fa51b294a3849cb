"""Guessing as commands have it: the draft model's name, and a line about how well it went."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from llmgen import hub
from llmgen.cli.common.models import model_path

if TYPE_CHECKING:
    from llmgen.engine import SpeculativeConfig
    from llmgen.engine.speculation.stats import Idle, SpeculationStats


def check_draft(guessing: SpeculativeConfig | None) -> None:
    """Refuse the wrong name of a draft model, before anything is fetched or read."""
    if guessing is not None and guessing.draft is not None:
        hub.find(str(guessing.draft))


def with_path(guessing: SpeculativeConfig | None) -> SpeculativeConfig | None:
    """The options with the draft model's path for its name; it is fetched where it is a known one."""
    if guessing is None or guessing.draft is None:
        return guessing
    return replace(guessing, draft=model_path(str(guessing.draft)))


_WHY: dict[Idle, str] = {
    "no_match": "nothing of the text occurred before",
    "context": "the draft's context is full",
    "measuring": "the first steps show what a step takes without guesses",
    "never": "on this machine a guess costs more than it can gain",
    "spent": "guessing may lose little, and trying it would cost more than that",
    "wrong": "too few were right before",
}


def guessing_note(stats: SpeculationStats | None) -> str | None:
    """How well guessing went, as a line; None for an answer without guessing."""
    if stats is None:
        return None
    speed = ""
    if stats.guessed and stats.speedup is not None:
        speed = f", about {stats.speedup:.2f} times as fast as without"
    return f"guesses: {guessing_figures(stats)}{speed}"


def guessing_figures(stats: SpeculationStats) -> str:
    """How many guesses were right, or why there were none."""
    if stats.acceptance_rate is None or stats.tokens_per_step is None:
        return "none" + (f" ({_WHY[stats.idle]})" if stats.idle else "")
    return (
        f"{stats.accepted} of {stats.guessed} right ({stats.acceptance_rate:.0%}),"
        f" {stats.tokens_per_step:.2f} tokens a step"
    )
