"""What runs cost, measured on the way, and the account of what guessing has gained and lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmgen.engine.speculation.account import Account

_WEIGHT = 0.15
"""The weight of a new measurement."""
_SLOPE = 0.3
"""What one more token in a run is taken to cost before that was measured, in plain steps."""
_PLAIN_EVERY = 8, 64
"""One run in so many is plain, so that its cost stays known: the fewest while that changes, and the most."""
_STEADY = 0.04
"""The cost of a plain run has not changed if it differs by no more."""
_RECHECK = 0.3
"""The weight of plain runs after some with guesses."""
FIRST_RUNS = 3
"""Measurements before averages count: the first runs of a program are slower."""
_FEW = 2
"""Tokens of a usual run of the draft: its own last guess, and the token that the model chose after it."""
_ANY = 1 << 30
_MOST_KEPT_GAIN = 0.5
"""How much of the gain of earlier answers, and of earlier programs, may be lost again, in plain steps."""
_SIZES, _COSTS = range(2, 17), (0.1, 100.0)
"""Tokens of a run, and costs in plain steps, that a file may tell of."""
_MOST_CHANGE = 1.5
"""A measurement counts as no more than so many times what was known, or as no less than that part of it: what else
the machine does delays single runs by much."""


class Smoothed:
    """A quantity that is measured again and again."""

    def __init__(self) -> None:
        self.value = 0.0
        self._first: list[float] = []

    @classmethod
    def of(cls, value: float) -> Smoothed:
        """One that is known already."""
        known = cls()
        known.value, known._first = value, [value] * FIRST_RUNS
        return known

    @property
    def known(self) -> bool:
        """Whether it was measured often enough."""
        return len(self._first) == FIRST_RUNS

    def add(self, measured: float, expected: float = float("inf")) -> None:
        """Take in a measurement: of the first ones the smallest counts, then an average.

        The first ones may be delayed by chance: they count as no more than ``_MOST_CHANGE`` times what is expected.
        """
        measured = max(measured, 1e-9)
        if self.known:
            self.value *= _change(measured / self.value) ** _WEIGHT
        else:
            self._first.append(min(measured, _MOST_CHANGE * expected))
            self.value = min(self._first)


def _change(ratio: float) -> float:
    """What a measurement counts as, in terms of what was known."""
    return min(max(ratio, 1 / _MOST_CHANGE), _MOST_CHANGE)


class StepCosts:
    """What runs of generated tokens cost, in seconds by the number of tokens in them, and what the draft costs.

    All requests of a model share one.  It also keeps the account of what guessing has gained or lost.
    """

    def __init__(self, draft_share: float = 0.0) -> None:
        """``draft_share``: what the draft is taken to cost before it was measured, as a share of the model's time."""
        self._draft_share = draft_share
        self._guess, self._follow = Smoothed(), Smoothed()
        self._tried = Smoothed()  # seconds of a guess, timed before there is any text
        self._more = Smoothed()  # the cost of one more token in a run of the draft, as a share of a guess
        self._granted_s = 0.0  # the seconds that the guesses for the next run lose if all of them are wrong
        self._account = Account()
        self._scale = 0.0  # seconds of a plain step
        self._shape: dict[int, Smoothed] = {}  # tokens in a run -> its cost, in plain steps
        self._plain_every, _ = _PLAIN_EVERY
        self._unchecked = 0  # runs with guesses since two plain ones
        self._n_plain = 0  # plain runs, one after the other
        self._last_plain = float("inf")  # seconds of a plain step as the last one has shown
        # from an earlier program: tokens in a run -> its cost, in plain steps
        self._kept: dict[int, float] = {}
        self._kept_gain = 0.0

    def known(self) -> dict[str, Any] | None:
        """What a file keeps: costs and gain in plain steps; None if the draft or a run with guesses was not timed."""
        sizes = [size for size in self._shape if size in _SIZES and self.knows(size)]
        if not sizes or not self.knows(1) or (self._draft_share and not self._guess.known):
            return None
        runs = {str(size): self._shape[size].value / self._shape[1].value for size in sizes}
        return {"runs": runs, "guess": self.guess_s / self.of(1), "gain": max(0.0, -self.loss_s / self.of(1))}

    def recall(self, known: dict[str, Any]) -> None:
        """Begin with what :meth:`known` gave another program, as soon as a plain step is measured.

        Raises ValueError, TypeError or KeyError for what it cannot have given.
        """
        runs = {int(size): float(cost) for size, cost in known["runs"].items()}
        guess, gain = float(known["guess"]), float(known["gain"])
        low, high = _COSTS
        if not all(size in _SIZES and low <= cost <= high for size, cost in runs.items()):
            raise ValueError(f"runs that cost {runs}")
        if not (0 <= guess <= high and 0 <= gain < float("inf")):
            raise ValueError(f"a guess that costs {guess}, a gain of {gain}")
        self._kept, self._kept_gain = runs, min(gain, _MOST_KEPT_GAIN)
        if self._draft_share:
            self._draft_share = guess

    def _use_kept(self) -> None:
        """Runs cost what they did, in terms of the plain step that is known now; some of the gain may be lost again."""
        plain = self._shape[1].value
        for size, cost in self._kept.items():
            self._shape.setdefault(size, Smoothed.of(cost * plain))
        self._account.credit(self._kept_gain, self.of(1))
        self._kept = {}

    @property
    def plain_step_s(self) -> float | None:
        """Seconds of a run of one token, as far as one was measured."""
        return self.of(1) if 1 in self._shape else None

    def wants_plain(self, n_sequences: int) -> bool:
        """Whether the next run of so many sequences should have no guesses, to be measured."""
        return not self.knows(n_sequences) or self._unchecked >= self._plain_every

    def knows(self, n_tokens: int) -> bool:
        """Whether runs of so many tokens were measured often enough."""
        return n_tokens in self._shape and self._shape[n_tokens].known

    def of(self, n_tokens: int) -> float:
        """Seconds of a run of n tokens: measured, or estimated along the line through two that were measured."""
        shape = self._shape.get(n_tokens)
        return self._scale * (self._estimated(n_tokens) if shape is None else shape.value)

    def _estimated(self, n_tokens: int) -> float:
        """The cost of a run of n tokens in plain steps."""
        sizes = sorted(self._shape)
        cost = {size: self._shape[size].value for size in sizes} or {1: 1.0}
        if len(sizes) < 2:
            [(first, its_cost)] = cost.items()
            return max(its_cost + _SLOPE * (n_tokens - first), 0.5)
        low = max((size for size in sizes[:-1] if size < n_tokens), default=sizes[0])
        high = min(size for size in sizes if size > low and size >= min(n_tokens, sizes[-1]))
        slope = max(0.0, (cost[high] - cost[low]) / (high - low))
        return max(cost[low] + slope * (n_tokens - low), 0.5)

    def ran(self, n_tokens: int, n_sequences: int, seconds: float) -> None:
        """A run of ``n_tokens`` took so long; ``n_sequences`` of them were no guesses."""
        guesses = n_tokens > n_sequences
        self._granted_s = 0.0
        usual_s = self.of(n_tokens) or seconds
        self._measure(n_tokens, max(seconds, 1e-9), plain=not guesses)
        self._account.plain_s += self.of(n_sequences)
        if guesses:
            self._unchecked, self._n_plain = self._unchecked + 1, 0
            self._account.spent(min(seconds, _MOST_CHANGE * usual_s))
            self._replaced(n_sequences, 1.0)
        elif not self._unchecked:
            self._account.settle(self.of(1))

    def _replaced(self, n_sequences: int, n_runs: float) -> None:
        """So many plain runs of ``n_sequences`` would have been needed without guesses."""
        self._account.replaced(n_runs * self._steps(n_sequences), self.of(1))

    def _measure(self, n_tokens: int, seconds: float, plain: bool) -> None:
        if not self._scale:
            self._scale = seconds / (1 + _SLOPE * (n_tokens - 1))
        expected = self._estimated(n_tokens) if self._shape else float("inf")
        cost = self._shape.setdefault(n_tokens, Smoothed())
        if plain and cost.known:
            self._check_scale(seconds / cost.value)
        else:
            cost.add(seconds / self._scale, expected)
        if self._kept and self.knows(1):
            self._use_kept()

    def _check_scale(self, measured: float) -> None:
        """A plain run has shown what a plain step takes now; in a longer context it is more, for example.

        Of two plain runs the faster one counts: what delays one by chance would look like a gain of the guesses.
        """
        change = _change(min(measured, self._last_plain) / self._scale)
        self._scale *= change ** (_RECHECK if self._unchecked else _WEIGHT)
        self._last_plain, self._n_plain = measured, self._n_plain + 1
        if self._unchecked and self._n_plain >= 2:
            self._unchecked = 0
            least, most = _PLAIN_EVERY
            steady = abs(change - 1) <= _STEADY
            self._plain_every = (
                min(2 * self._plain_every, most) if steady else max(self._plain_every // 2, least)
            )

    @property
    def guess_s(self) -> float:
        """Seconds of one guess of the draft, a run of one token."""
        if self._guess.known:
            return self._guess.value
        # what delays the first ones must not keep the draft from guessing
        found = self._guess.value, self._tried.value, self._draft_share * self.of(1)
        return min((seconds for seconds in found if seconds), default=0.0)

    def follow_s(self, prompt_token_s: float) -> float:
        """Seconds that the draft needs for a token of the text that it has not seen.

        ``prompt_token_s``: what the model itself takes for a token of a prompt.
        """
        return self._follow.value or self._draft_share * prompt_token_s

    def guess_run_s(self, n_tokens: int) -> float:
        """Seconds of a run of the draft with so many tokens."""
        return self.guess_s * self._guesses(n_tokens)

    def _guesses(self, n_tokens: int) -> float:
        """The time of a run of the draft by that of a guess; if it was not measured, it grows as that of the model."""
        return 1 + self._more.value * (n_tokens - 1) if self._more.known else self._steps(n_tokens)

    def _steps(self, n_tokens: int) -> float:
        """The time of a run of n tokens by that of a run of one."""
        return self.of(n_tokens) / self.of(1) if self._scale else 1.0

    def guessed(self, sizes: Sequence[int], seconds: float, n_sequences: int = 1) -> None:
        """Runs of the draft with so many tokens, of so many sequences at first, took so long in all."""
        n = sum(map(self._guesses, sizes))
        if max(sizes) <= _FEW * n_sequences:  # how much dearer longer ones are is but an estimate
            self._guess.add(seconds / n, self._draft_share * self.of(1) or float("inf"))
        usual_s = self.guess_s * n
        self._account.spent(min(seconds, _MOST_CHANGE * usual_s))

    def followed(self, n: int, seconds: float) -> None:
        """The draft took so long to compute n tokens of the text."""
        self._account.spent(seconds)
        self._follow.add(seconds / n)

    def tried(self, guess_s: float, n: int, seconds: float) -> None:
        """A guess of the draft, and a run of n tokens, took so long, for which nobody had to wait."""
        self._tried.add(guess_s)
        self._more.add((seconds / self._tried.value - 1) / (n - 1))
        self._follow.add(seconds / n)

    def accepted(self, n_sequences: int) -> None:
        """A guess was right: a plain run of ``n_sequences`` would have been needed for each of as many tokens."""
        self._account.plain_s += self.of(n_sequences) / n_sequences
        self._replaced(n_sequences, 1 / n_sequences)

    def start_answer(self) -> None:
        """A gain of earlier answers is no reason to lose much in this one."""
        self._account.carry_over(_MOST_KEPT_GAIN, self.of(1) if self._scale else 0.0)

    @property
    def loss_s(self) -> float:
        """What guessing has lost so far, in seconds; below 0 a gain."""
        return self._account.loss_s(self.of(1))

    @property
    def room_s(self) -> float:
        """Seconds that guessing may lose now."""
        return self._account.room_s(self.of(1)) - self._granted_s

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
