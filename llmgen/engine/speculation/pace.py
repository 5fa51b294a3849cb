"""How many tokens to guess at a step: as many as pay, by what was accepted so far and what steps cost."""

from __future__ import annotations

from dataclasses import dataclass

from llmgen.engine.speculation.config import SpeculativeConfig
from llmgen.engine.speculation.costs import StepCosts

_MEMORY = 0.95
"""The weight of what was known, for each guess that is judged."""
_FIRST_REST, _LONGEST_REST = 16, 512
"""Steps without guesses after guesses did not pay; doubled each time they do not."""
_ENOUGH = 5
"""Judged guesses from which on a share of them says something."""


@dataclass
class _Record:
    """How guesses of one kind did."""

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
        """The probability that a guess is right if those before it are; 1/2 before anything is known."""
        return (self.right + 1.0) / (self.right + self.wrong + 2.0)

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

    def __init__(self, config: SpeculativeConfig, costs: StepCosts) -> None:
        self._config = config
        self._costs = costs
        self._records: dict[int, _Record] = {}

    def choose(
        self, most: int, kind: int, n_sequences: int = 1, guess_s: float = 0.0, before_s: float = 0.0
    ) -> int:
        """How many tokens to guess now, at most ``most``.

        A guess of this kind costs ``guess_s`` to make, and the first one ``before_s`` beside that.
        """
        record = self._records.setdefault(kind, _Record())
        most = min(most, self._config.k_max)
        if self._config.adaptive:
            if self._costs.wants_plain(n_sequences) or not self._best(1.0, most, n_sequences, guess_s):
                return 0
            most = self._costs.affordable(most, n_sequences, guess_s, before_s)
        n = self._number(record, most, n_sequences, guess_s)
        if n:
            self._costs.grant(n, n_sequences, guess_s, before_s)
        return n

    def _number(self, record: _Record, most: int, n_sequences: int, guess_s: float) -> int:
        if record.rest:
            record.rest -= 1
            record.trial = 0 if record.rest else min(2, most)
            return record.trial
        if most < 1:
            return 0
        best = self._paying(record, most, n_sequences, guess_s)
        if not best:
            record.rest, record.next_rest = record.next_rest, min(2 * record.next_rest, _LONGEST_REST)
        elif record.judged >= _ENOUGH:
            record.next_rest = _FIRST_REST
        return best

    def _paying(self, record: _Record, most: int, n_sequences: int, guess_s: float) -> int:
        config = self._config
        if record.judged >= _ENOUGH and record.share < config.min_acceptance:
            return 0
        if not config.adaptive or record.judged < _ENOUGH:
            return min(config.k, most)
        return self._best(record.acceptance, most, n_sequences, guess_s)

    def _best(self, acceptance: float, most: int, n_sequences: int, guess_s: float) -> int:
        """The number of guesses that gives most tokens a second, 0 where plain steps do."""
        tokens, best, best_rate = 1.0, 0, 1 / self._costs.of(n_sequences)
        for n in range(1, most + 1):
            tokens += acceptance**n
            rate = tokens / (self._costs.of(n_sequences + n) + n * guess_s)
            if rate > best_rate:
                best, best_rate = n, rate
        return best

    def judged(self, kind: int, right: bool, n_behind: int, n_sequences: int) -> None:
        """A guess of this kind turned out right, or wrong as did the ``n_behind`` after it."""
        record = self._records[kind]
        record.judge(right, n_behind)
        if right:
            self._costs.accepted(n_sequences)
