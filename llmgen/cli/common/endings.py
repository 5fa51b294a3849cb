"""One line about answers that were cut off, so that nobody takes a cut for the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from llmgen.cli.terminal.output import note

if TYPE_CHECKING:
    from llmgen.engine import GenerationResult


def cut_by(result: GenerationResult) -> str | None:
    """What cut an answer off: max_tokens, context_full or timeout; None if nothing did, or no token was wanted."""
    if result.finish_detail == "max_tokens" and not result.completion_tokens:
        return None
    return result.finish_detail if result.finish_reason in ("length", "timeout") else None


def cut_note(cuts: Iterable[str | None], n_ctx: int) -> str | None:
    """One line about several answers, given what cut each one off; None if nothing did."""
    found = list(cuts)
    parts = []
    for cut, number in Counter(cut for cut in found if cut).items():
        verb = "was" if number == 1 else "were"
        who = "the answer" if len(found) == 1 else f"{number} of {len(found)} answers"
        parts.append(f"{who} {verb} cut {_how(cut, n_ctx)}")
    return "; ".join(parts) or None


def note_cuts(results: Sequence[GenerationResult], n_ctx: int) -> None:
    """Say on stderr which answers were cut off, if any."""
    line = cut_note(map(cut_by, results), n_ctx)
    if line is not None:
        note(line)


def _how(cut: str, n_ctx: int) -> str:
    if cut == "max_tokens":
        return "at the limit of tokens (-n; -1 sets none)"
    if cut == "context_full":
        return f"where the context of {n_ctx} tokens was full (-c changes its size, --context-full shift continues)"
    return "when the time was up (--timeout)"
