"""How many tokens to guess at a step: as many as pay, by what was accepted so far and what steps cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from llmgen.engine.speculation.config import SpeculativeConfig

_MEMORY = 0.95
"""The weight of what was known, for each guess that is judged."""
_WEIGHT = 0.15
"""The weight of a new measurement."""
_SLOPE = 0.15
"""What one more token in a run is taken to cost before that was measured, in plain steps."""
_FIRST_REST, _LONGEST_REST = 16, 512
"""Steps without guesses after guesses did not pay; doubled each time they do not."""
_ENOUGH = 5
"""Judged guesses from which on a share of them says something."""
_LOSS = 0.015
"""What guessing may lose, as a share of the time that plain steps would have taken."""
_FREE_LOSS, _MOST_GAIN = 2.0, 8.0
"""What it may lose before that, and how much of a gain is remembered, in plain steps."""
_PLAIN_EVERY = 256
"""One run in so many is plain, so that its cost stays known."""
_FIRST_RUNS = 3
"""Runs of a size whose shortest counts, before averages do."""
_MOST_CHANGE = 4.0
"""A measurement counts as no more than so many times what was known, or as no less than that part of it."""


class StepCosts:
    """What runs of generated tokens cost, in seconds by the number of tokens in them, and a guess of the draft.

    All requests of a model share one.  It also keeps the account of what guessing has gained or lost.
    """

    def __init__(self) -> None:
        self.guess_s = 0.0
        self.follow_s = 0.0
        """What the draft takes for a token of the text that it has not seen, because it paused."""
        self.loss_s = 0.0
        self.plain_s = 0.0
        """The time that plain steps would have taken for all tokens so far."""
        self._scale = 0.0  # seconds of a plain step
        self._shape: dict[int, float] = {}  # tokens in a run -> its cost, in plain steps
        self._counts: Counter[int] = Counter()
        self._since_plain = 0

    @property
    def plain_step_s(self) -> float | None:
        """Seconds of a run of one token, as far as one was measured."""
        return self._scale * self._shape[1] if 1 in self._shape else None

    def wants_plain(self, n_sequences: int) -> bool:
        """Whether the next run of so many sequences should have no guesses, to be measured."""
        return self._counts[n_sequences] < _FIRST_RUNS or self._since_plain >= _PLAIN_EVERY

    def of(self, n_tokens: int) -> float:
        """Seconds of a run of n tokens: measured, or estimated along the line through two that were measured."""
        shape = self._shape.get(n_tokens)
        return self._scale * (self._estimated(n_tokens) if shape is None else shape)

    def _estimated(self, n_tokens: int) -> float:
        """The cost of a run of n tokens in plain steps."""
        sizes = sorted(self._shape)
        if len(sizes) < 2:
            first = sizes[0] if sizes else 1
            return max(self._shape.get(first, 1.0) + _SLOPE * (n_tokens - first), 0.5)
        low = max((size for size in sizes[:-1] if size < n_tokens), default=sizes[0])
        high = min(size for size in sizes if size > low and size >= min(n_tokens, sizes[-1]))
        slope = max(0.0, (self._shape[high] - self._shape[low]) / (high - low))
        return max(self._shape[low] + slope * (n_tokens - low), 0.5)

    def ran(self, n_tokens: int, n_sequences: int, seconds: float) -> None:
        """A run of ``n_tokens`` took so long; ``n_sequences`` of them were no guesses."""
        guesses = n_tokens > n_sequences
        self._since_plain = self._since_plain + 1 if guesses else 0
        self._measure(n_tokens, max(seconds, 1e-9))
        self.plain_s += self.of(n_sequences)
        if guesses:
            self.loss_s += seconds - self.of(n_sequences)

    def _measure(self, n_tokens: int, seconds: float) -> None:
        if not self._scale:
            self._scale = seconds / (1 + _SLOPE * (n_tokens - 1))
        cost = seconds / self._scale
        self._counts[n_tokens] += 1
        if self._counts[n_tokens] <= _FIRST_RUNS:  # the first runs of a program are slower
            self._shape[n_tokens] = min(cost, self._shape.get(n_tokens, cost))
            return
        # a longer context makes all runs dearer, a busy machine some of them
        ratio = min(max(cost / self._shape[n_tokens], 1 / _MOST_CHANGE), _MOST_CHANGE) ** (_WEIGHT / 2)
        self._scale *= ratio
        self._shape[n_tokens] *= ratio

    def guessed(self, n: int, seconds: float) -> None:
        """Guessing n tokens took so long."""
        self.loss_s += seconds
        self.guess_s = _averaged(self.guess_s, seconds / n)

    def followed(self, n: int, seconds: float) -> None:
        """The draft took so long to compute n tokens of the text."""
        self.loss_s += seconds
        self.follow_s = _averaged(self.follow_s, seconds / n)

    def accepted(self, n_sequences: int) -> None:
        """A guess was right: a plain run of ``n_sequences`` would have been needed for each of as many tokens."""
        gain = self.of(n_sequences) / n_sequences
        self.plain_s += gain
        self.loss_s = max(self.loss_s - gain, -_MOST_GAIN * self.of(1))

    def affordable(self, most: int, n_sequences: int, guess_s: float, before_s: float) -> int:
        """How many guesses, at most ``most``, may all be wrong without losing too much, after ``before_s``."""
        room = _LOSS * self.plain_s + _FREE_LOSS * self.of(1) - self.loss_s + self.of(n_sequences) - before_s
        return next(
            (n for n in range(most, 0, -1) if self.of(n_sequences + n) + n * guess_s <= room),
            0,
        )


def _averaged(old: float, new: float) -> float:
    return old + _WEIGHT * (new - old) if old else new


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
        self, most: int, kind: int, n_sequences: int = 1, costs_s: float = 0.0, before_s: float = 0.0
    ) -> int:
        """How many tokens to guess now, at most ``most``.

        A guess of this kind costs ``costs_s`` to make, and the first one ``before_s`` beside that.
        """
        record = self._records.setdefault(kind, _Record())
        most = min(most, self._config.k_max)
        if self._config.adaptive:
            if self._costs.wants_plain(n_sequences):
                return 0
            most = self._costs.affordable(most, n_sequences, costs_s, before_s)
        if record.rest:
            record.rest -= 1
            record.trial = 0 if record.rest else min(2, most)
            return record.trial
        if most < 1:
            return 0
        best = self._best(record, most, n_sequences, costs_s)
        if not best:
            record.rest, record.next_rest = record.next_rest, min(2 * record.next_rest, _LONGEST_REST)
        elif record.judged >= _ENOUGH:
            record.next_rest = _FIRST_REST
        return best

    def _best(self, record: _Record, most: int, n_sequences: int, costs_s: float) -> int:
        config = self._config
        if record.judged >= _ENOUGH and record.share < config.min_acceptance:
            return 0
        if not config.adaptive or record.judged < _ENOUGH:
            return min(config.k, most)
        a, tokens, best, best_rate = record.acceptance, 1.0, 0, 1 / self._costs.of(n_sequences)
        for n in range(1, most + 1):
            tokens += a**n
            rate = tokens / (self._costs.of(n_sequences + n) + n * costs_s)
            if rate > best_rate:
                best, best_rate = n, rate
        return best

    def judged(self, kind: int, right: bool, n_behind: int, n_sequences: int) -> None:
        """A guess of this kind turned out right, or wrong as did the ``n_behind`` after it."""
        record = self._records[kind]
        record.judge(right, n_behind)
        if right:
            self._costs.accepted(n_sequences)
