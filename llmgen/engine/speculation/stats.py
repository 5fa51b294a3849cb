"""How well guessing went in one answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Idle = Literal["no_match", "context", "measuring", "never", "spent", "wrong"]
"""Why nothing was guessed at a step: the text did not occur before; the draft's context is full; what a plain step
takes was measured first; a guess costs more than it can gain on this machine; guessing had lost as much as it may;
too few guesses were right before.  With a lookup and a draft, it is the draft's reason."""

FEWEST_TOKENS = 32
"""Of a shorter answer the speed-up is not told: single steps vary by more than guesses gain."""


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """The figures of one answer.

    ``steps`` are runs of the model after the prompt's and ``tokens`` what they gave; ``guessed`` tokens
    were judged and ``accepted`` were right.  ``draft_s`` is the time spent on guessing, in seconds, part
    of ``Timings.decode_s``.  ``plain_step_s`` is what a step without guesses takes on average, None as
    long as none was timed.  ``idle``: where nothing was guessed, what the reason was at most steps.
    """

    steps: int = 0
    tokens: int = 0
    guessed: int = 0
    accepted: int = 0
    draft_s: float = 0.0
    decode_s: float = 0.0
    plain_step_s: float | None = None
    idle: Idle | None = None

    @property
    def acceptance_rate(self) -> float | None:
        """The share of the guesses that were right; None where there was none."""
        return self.accepted / self.guessed if self.guessed else None

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens that a run gave; None where there was none."""
        return self.tokens / self.steps if self.steps else None

    @property
    def speedup(self) -> float | None:
        """An estimate: the time that as many plain steps take, by the time that was taken.

        None where no plain step was timed, and for fewer than ``FEWEST_TOKENS`` tokens, of which it says little.
        """
        if self.plain_step_s is None or not self.decode_s or self.tokens < FEWEST_TOKENS:
            return None
        return self.tokens * self.plain_step_s / self.decode_s

    def as_dict(self) -> dict[str, float | int | str | None]:
        """The counts, the three figures and the reason, ready for JSON."""
        return {
            "steps": self.steps,
            "guessed": self.guessed,
            "accepted": self.accepted,
            "draft_s": self.draft_s,
            "acceptance_rate": self.acceptance_rate,
            "tokens_per_step": self.tokens_per_step,
            "speedup": self.speedup,
            "idle": self.idle,
        }
