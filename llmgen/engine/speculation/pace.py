"""How many tokens to guess at a step: as many as pay, by what was accepted so far and what steps cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from llmgen.engine.speculation.config import SpeculativeConfig
from llmgen.engine.speculation.costs import StepCosts
from llmgen.engine.speculation.experience import DRAFT, Experience
from llmgen.engine.speculation.stats import Idle

_MEMORY = 0.95
"""The weight of what was known, for each guess that is judged."""
_WEIGHT = 2.0
"""The weight of what earlier answers have shown, in guesses."""
_DOUBT = 0.5
"""A pause begins where guessing would not pay if the acceptance were so many standard deviations higher."""
_FIRST_REST, _LONGEST_REST = 16, 512
"""Steps without guesses after guesses did not pay; doubled each time they do not."""
_TRIAL = 2
"""Guesses after a pause that must all be right for more to follow."""
_ENOUGH = 5
"""Judged guesses from which on a share of them says something."""


@dataclass
class _Record:
    """How guesses of one kind did."""

    expected: float
    """The acceptance before anything is known."""
    right: float = 0.0
    wrong: float = 0.0
    wasted: float = 0.0
    """Guesses after a wrong one."""
    judged: int = 0
    rest: int = 0
    next_rest: int = _FIRST_REST
    trial: int = 0
    """Guesses of a trial after a rest that are still to be judged."""

    @property
    def acceptance(self) -> float:
        """The probability that a guess is right if those before it are."""
        return (self.right + _WEIGHT * self.expected) / (self.right + self.wrong + _WEIGHT)

    @property
    def possible(self) -> float:
        """The acceptance in the benefit of the doubt."""
        mean, n = self.acceptance, self.right + self.wrong + _WEIGHT
        return min(1.0, mean + _DOUBT * math.sqrt(mean * (1 - mean) / n))

    @property
    def share(self) -> float:
        """The share of all guesses that were right, as ``SpeculationStats.acceptance_rate`` has it; rather too high."""
        return (self.right + 2.0) / (self.right + self.wrong + self.wasted + 2.0)

    def judge(self, right: bool, n_behind: int) -> None:
        self.right = _MEMORY * self.right + right
        self.wrong = _MEMORY * self.wrong + (not right)
        self.wasted = _MEMORY * self.wasted + (0 if right else n_behind)
        self.judged += 1
        if self.trial:
            self.trial = self.trial - 1 if right else 0
            if right and not self.trial:  # all of them were: the text may have changed
                self.wrong, self.wasted = self.wrong / 2, self.wasted / 2
                self.next_rest = _FIRST_REST


class Pace:
    """Decides for one sequence.  Guesses have a *kind*: those after a longer match are right more often."""

    def __init__(
        self, config: SpeculativeConfig, costs: StepCosts, experience: Experience | None = None
    ) -> None:
        """``experience``: of all sequences of the model."""
        self._config = config
        self._costs = costs
        self._experience = experience or Experience()
        self._records: dict[int, _Record] = {}
        self.idle: Idle | None = None
        """Why nothing was to be guessed, the last time."""

    def choose(
        self, most: int, kind: int, n_sequences: int = 1, guess_s: float = 0.0, before_s: float = 0.0
    ) -> int:
        """How many tokens to guess now, at most ``most``; of a draft, see :meth:`goes_on`.

        A guess of this kind costs ``guess_s`` to make, and the first one ``before_s`` beside that.
        """
        record = self._records.setdefault(kind, _Record(self._experience.expected(kind)))
        most, self.idle = min(most, self._config.k_max), None
        if self._config.adaptive:
            most = self._bounded(most, n_sequences, guess_s, before_s)
        n = self._number(record, kind, most, n_sequences, guess_s)
        if n:
            self._costs.grant(n, n_sequences, guess_s, before_s)
        return n

    def goes_on(self, confidences: Sequence[float], n_sequences: int, guess_s: float) -> bool:
        """Whether one more guess of a draft pays after those of such confidence."""
        if not self._config.adaptive:
            return True
        right = self._experience.all_right(confidences) * self._records[DRAFT].acceptance
        n = n_sequences + len(confidences)
        costs = guess_s + self._costs.of(n + 1) - self._costs.of(n)
        return right * self._costs.of(n_sequences) / n_sequences > costs

    def _bounded(self, most: int, n_sequences: int, guess_s: float, before_s: float) -> int:
        """So many guesses that what they may lose is bounded."""
        if self._costs.wants_plain(n_sequences):
            self.idle = "measuring"
        elif self._never_pays(most, n_sequences, guess_s):
            self.idle = "never"
        else:
            most = self._costs.affordable(most, n_sequences, guess_s, before_s)
            self.idle = None if most else "spent"
        return 0 if self.idle else most

    def _never_pays(self, most: int, n_sequences: int, guess_s: float) -> bool:
        """Whether guesses lose even if all are right; what was measured only once or twice is not believed."""
        known = guess_s >= self._costs.of(n_sequences) or self._costs.knows(n_sequences + 1)
        return known and not self._best(1.0, most, n_sequences, guess_s)

    def _number(self, record: _Record, kind: int, most: int, n_sequences: int, guess_s: float) -> int:
        if record.rest and self.idle != "measuring":
            self._count_rest(record)
        if record.rest:
            return 0
        if record.trial:
            return min(record.trial, most, 1 if kind == DRAFT else most)
        if most < 1:
            return 0
        best = self._paying(record, kind, most, n_sequences, guess_s)
        if not best:
            record.rest, record.next_rest = record.next_rest, min(2 * record.next_rest, _LONGEST_REST)
            self.idle = "wrong"
        elif record.judged >= _ENOUGH:
            record.next_rest = _FIRST_REST
        return best

    def _count_rest(self, record: _Record) -> None:
        """One step of a pause has passed; after the last one comes a trial."""
        record.rest -= 1
        if record.rest:
            self.idle = "wrong"
        else:
            record.trial = _TRIAL

    def _paying(self, record: _Record, kind: int, most: int, n_sequences: int, guess_s: float) -> int:
        """The number of guesses, at most ``most``, that pays by what is known; 0 where none does."""
        config = self._config
        if record.judged >= _ENOUGH and record.share < config.min_acceptance:
            return 0
        if not config.adaptive:
            return min(config.k, most)
        if record.judged < _ENOUGH:
            # of a draft one by one: those after a wrong guess cost something and tell nothing
            return min(config.k, most, record.judged + 1 if kind == DRAFT else most)
        best = self._best(record.possible, most, n_sequences, guess_s)
        if kind == DRAFT and best:
            return most  # its confidence shows how far
        return self._best(record.acceptance, most, n_sequences, guess_s) or min(best, 1)

    def _best(self, acceptance: float, most: int, n_sequences: int, guess_s: float) -> int:
        """The number of guesses that gives most tokens a second, 0 where plain steps do."""
        tokens, best = float(n_sequences), 0
        best_rate = tokens / self._costs.of(n_sequences)
        for n in range(1, most + 1):
            tokens += acceptance**n
            rate = tokens / (self._costs.of(n_sequences + n) + n * guess_s)
            if rate > best_rate:
                best, best_rate = n, rate
        return best

    def judged(
        self, kind: int, right: bool, n_behind: int, n_sequences: int, confidence: float | None = None
    ) -> None:
        """A guess of this kind turned out right, or wrong as did the ``n_behind`` after it."""
        self._records[kind].judge(right, n_behind)
        self._experience.judged(kind, right, confidence)
        if right:
            self._costs.accepted(n_sequences)
