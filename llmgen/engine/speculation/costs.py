"""What runs cost, measured on the way, and the account of what guessing has gained and lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

_WEIGHT = 0.15
"""The weight of a new measurement."""
_SLOPE = 0.3
"""What one more token in a run is taken to cost before that was measured, in plain steps."""
_LOSS = 0.015
"""What guessing may lose, as a share of the time that plain steps would have taken."""
_FREE_LOSS, _MOST_GAIN = 1.1, 8.0
"""What it may lose before that, and how much of a gain is remembered, in plain steps.  Together they keep the loss
over 96 tokens below 3%."""
_PLAIN_EVERY = 256
"""One run in so many is plain, so that its cost stays known."""
_FIRST_RUNS = 3
"""Measurements of which the shortest counts, before averages do: the first runs of a program are slower."""
_ANY = 1 << 30
_MOST_CHANGE = 4.0
"""A measurement counts as no more than so many times what was known, or as no less than that part of it."""


@dataclass
class Smoothed:
    """A time that is measured again and again."""

    value: float = 0.0
    count: int = 0

    def add(self, seconds: float) -> None:
        """Take in a measurement."""
        self.count += 1
        if self.count <= _FIRST_RUNS:
            self.value = min(seconds, self.value) if self.count > 1 else seconds
        else:
            self.value += _WEIGHT * (seconds - self.value)


class StepCosts:
    """What runs of generated tokens cost, in seconds by the number of tokens in them, and what the draft costs.

    All requests of a model share one.  It also keeps the account of what guessing has gained or lost.
    """

    def __init__(self, draft_share: float = 0.0) -> None:
        """``draft_share``: what the draft is taken to cost before it was measured, as a share of the model's time."""
        self._draft_share = draft_share
        self._guess, self._follow = Smoothed(), Smoothed()
        self._granted_s = 0.0  # what the guesses for the next run lose if all of them are wrong
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
        self._granted_s = 0.0
        self._measure(n_tokens, max(seconds, 1e-9))
        self.plain_s += self.of(n_sequences)
        if guesses:
            self.loss_s += seconds - self.of(n_sequences)

    def _measure(self, n_tokens: int, seconds: float) -> None:
        if not self._scale:
            self._scale = seconds / (1 + _SLOPE * (n_tokens - 1))
        cost = seconds / self._scale
        self._counts[n_tokens] += 1
        if self._counts[n_tokens] <= _FIRST_RUNS:
            self._shape[n_tokens] = min(cost, self._shape.get(n_tokens, cost))
            return
        # a longer context makes all runs dearer, a busy machine some of them
        ratio = min(max(cost / self._shape[n_tokens], 1 / _MOST_CHANGE), _MOST_CHANGE) ** (_WEIGHT / 2)
        self._scale *= ratio
        self._shape[n_tokens] *= ratio

    @property
    def guess_s(self) -> float:
        """Seconds of one guess of the draft."""
        return self._guess.value if self._guess.count else self._draft_share * self.of(1)

    def follow_s(self, prompt_token_s: float) -> float:
        """Seconds that the draft needs for a token of the text that it has not seen.

        ``prompt_token_s``: what the model itself takes for a token of a prompt.
        """
        return self._follow.value if self._follow.count else self._draft_share * prompt_token_s

    def guessed(self, n: int, seconds: float) -> None:
        """Guessing n tokens took so long."""
        self.loss_s += seconds
        self._guess.add(seconds / n)

    def followed(self, n: int, seconds: float) -> None:
        """The draft took so long to compute n tokens of the text."""
        self.loss_s += seconds
        self._follow.add(seconds / n)

    def accepted(self, n_sequences: int) -> None:
        """A guess was right: a plain run of ``n_sequences`` would have been needed for each of as many tokens."""
        gain = self.of(n_sequences) / n_sequences
        self.plain_s += gain
        self.loss_s = max(self.loss_s - gain, -_MOST_GAIN * self.of(1))

    @property
    def room_s(self) -> float:
        """Seconds that guessing may lose now."""
        return _LOSS * self.plain_s + _FREE_LOSS * self.of(1) - self.loss_s - self._granted_s

    def affordable(self, most: int, n_sequences: int, guess_s: float, before_s: float) -> int:
        """How many guesses, at most ``most``, may all be wrong without losing too much, after ``before_s``.

        What longer runs cost is found out step by step: none is more than twice as long as those so far.
        """
        most = min(most, max(2 * max(self._shape, default=1), n_sequences + 1) - n_sequences)
        return next(
            (
                n
                for n in range(most, 0, -1)
                if self._at_stake(n, n_sequences, guess_s, before_s) <= self.room_s
            ),
            0,
        )

    def affordable_tokens(self, n_sequences: int, guess_s: float, token_s: float) -> int:
        """How many tokens of the text the draft may compute, at ``token_s`` each, before a wrong guess."""
        room_s = self.room_s - self._at_stake(1, n_sequences, guess_s, 0.0)
        return int(room_s / token_s) if token_s else _ANY

    def grant(self, n: int, n_sequences: int, guess_s: float, before_s: float) -> None:
        """So many guesses will be made for one of the sequences of the next run; the others may lose so much less."""
        self._granted_s += self._at_stake(n, n_sequences, guess_s, before_s)

    def _at_stake(self, n: int, n_sequences: int, guess_s: float, before_s: float) -> float:
        return before_s + n * guess_s + self.of(n_sequences + n) - self.of(n_sequences)
