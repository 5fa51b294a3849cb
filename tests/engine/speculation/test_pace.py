"""How many tokens are guessed, on a machine whose every run takes a known time."""

from __future__ import annotations

import random

import pytest

from llmgen.engine.speculation.config import SpeculativeConfig
from llmgen.engine.speculation.costs import StepCosts
from llmgen.engine.speculation.experience import DRAFT, Experience
from llmgen.engine.speculation.pace import Pace

LOOKUP = 2  # a match of two or three tokens

SLOPES = [0.09, 0.29]  # what a further token in a run costs, in plain steps: measured on Zen 5 and on Zen 2
GUESSES = [0.0, 0.1, 0.3]  # what a guess costs: of a lookup, of a small and of a large draft


class Machine:
    """Generates tokens; a guess is right with a probability that may depend on the place in the text.

    Guesses that cost something are those of a draft, whose confidence, if not told, is the truth.
    """

    def __init__(self, slope, guess_s, acceptance, config=None, seed=0, confidence=None, experience=None):
        self.costs = StepCosts()
        self.pace = Pace(config or SpeculativeConfig(lookup=True), self.costs, experience)
        self.kind = DRAFT if guess_s else LOOKUP
        self.confidence = confidence
        self.slope, self.guess_s = slope, guess_s
        self.acceptance = acceptance if callable(acceptance) else lambda place: acceptance
        self.random = random.Random(seed)
        self.time, self.tokens, self.numbers = 0.0, 0, []

    def generate(self, n):
        """The time of n tokens by that of as many plain steps."""
        while self.tokens < n:
            confidence = self.acceptance(self.tokens) if self.confidence is None else self.confidence
            guesses = self.guess(self.pace.choose(7, self.kind, 1, self.costs.guess_s), confidence)
            self.numbers.append(guesses)
            if guesses and self.guess_s:
                self.time += guesses * self.guess_s
                self.costs.guessed([1] * guesses, guesses * self.guess_s)
            seconds = 1 + self.slope * guesses + 0.1 * self.random.random()
            seconds *= 1.5 if not self.time else 1  # the first run is slower
            self.time += seconds
            self.costs.ran(1 + guesses, 1, seconds)
            self.tokens += 1
            for i in range(guesses):
                right = self.random.random() < self.acceptance(self.tokens)
                self.pace.judged(
                    self.kind, right, guesses - 1 - i, 1, confidence if self.kind == DRAFT else None
                )
                if not right:
                    break
                self.tokens += 1
        return self.time / (1.05 * n)

    def guess(self, most, confidence):
        """How many guesses are made."""
        n = min(1, most) if self.kind == DRAFT else most
        while n < most and self.pace.goes_on([confidence] * n, 1, self.costs.guess_s):
            n += 1
        return n


def best(slope, guess_s, acceptance):
    """What the best fixed number of guesses takes."""
    return min((1 + n * (slope + guess_s)) / sum(acceptance**i for i in range(n + 1)) for n in range(8))


@pytest.mark.parametrize("slope", SLOPES)
@pytest.mark.parametrize("guess_s", GUESSES)
def test_bad_guesses_cost_little(slope, guess_s):
    for acceptance in (0.0, 0.1, 0.3):
        for seed in range(5):
            options = {"seed": seed, "confidence": (None, 0.95)[seed % 2]}
            assert Machine(slope, guess_s, acceptance, **options).generate(200) < 1.03
            assert Machine(slope, guess_s, acceptance, **options).generate(3000) < 1.01


@pytest.mark.parametrize("slope", SLOPES)
@pytest.mark.parametrize("guess_s", GUESSES)
def test_good_guesses_gain_nearly_what_they_can(slope, guess_s):
    for acceptance in (0.7, 0.85, 0.95, 1.0):
        times = [Machine(slope, guess_s, acceptance, seed=seed).generate(3000) for seed in range(5)]
        possible = 1 - best(slope, guess_s, acceptance)
        assert 1 - sum(times) / 5 > 0.8 * possible - 0.05


def test_when_the_text_changes_the_number_follows():
    """Prose, then a long quotation, then prose: it pauses, finds out, and pauses again."""
    counts = []
    for seed in range(5):
        machine = Machine(0.1, 0.0, lambda place: 0.98 if 1000 < place < 4000 else 0.05, seed=seed)
        counts.append([])
        for n in (1000, 4000, 6000):
            machine.numbers.clear()
            machine.generate(n)
            counts[-1].append(sum(machine.numbers[-200:]) if n == 4000 else sum(machine.numbers))
    first, quotation, last = (sorted(column)[2] for column in zip(*counts, strict=True))
    assert first < 150
    assert quotation > 200 * 5
    assert last < 250


def test_it_pauses_below_the_acceptance_that_is_asked_for_and_tries_again():
    config = SpeculativeConfig(lookup=True, min_acceptance=0.9)
    machine = Machine(0.05, 0.0, 0.6, config)
    machine.generate(2000)
    tries = sum(n > 0 for n in machine.numbers)
    assert 5 < tries < 60
    fixed = SpeculativeConfig(lookup=True, min_acceptance=0.9, adaptive=False, k=3)
    machine = Machine(0.05, 0.0, 0.6, fixed)
    machine.generate(2000)
    assert 0.9 < machine.numbers.count(0) / len(machine.numbers) < 1


def test_the_least_acceptance_is_a_share_of_all_guesses():
    """Of four guesses of which each is right with 70% if those before it are, 44% are right."""
    for least, guesses in ((0.2, True), (0.7, False)):
        config = SpeculativeConfig(lookup=True, min_acceptance=least, adaptive=False, k=4)
        machine = Machine(0.05, 0.0, 0.7, config)
        machine.generate(3000)
        assert (machine.numbers.count(4) / len(machine.numbers) > 0.5) == guesses


def test_a_fixed_number_stays():
    machine = Machine(0.5, 0.5, 0.1, SpeculativeConfig(lookup=True, adaptive=False, k=3))
    machine.generate(500)
    assert set(machine.numbers) == {3}


def test_no_more_than_asked_for():
    machine = Machine(0.05, 0.0, 1.0, SpeculativeConfig(lookup=True, k=2, k_max=3))
    machine.generate(500)
    assert [n for n in machine.numbers if n][:3] == [1, 2, 2]  # first one, to see what that costs; then k
    assert max(machine.numbers) == 3


def measured_machine(confidence, acceptance):
    machine = Machine(0.1, 0.3, acceptance, confidence=confidence)
    machine.generate(300)
    return machine


def test_a_draft_that_is_sure_guesses_further():
    machine = measured_machine(None, 0.8)
    further = [machine.pace.goes_on([confidence], 1, 0.3) for confidence in (0.99, 0.9, 0.4, 0.2)]
    assert further == [True, True, False, False]
    assert not machine.pace.goes_on([0.9] * 6, 1, 0.3)


def test_how_far_confidence_goes_is_learned():
    """A draft that is sure of itself without reason, and one that is right without being sure."""
    assert not measured_machine(0.99, 0.45).pace.goes_on([0.99], 1, 0.3)
    assert measured_machine(0.5, 0.95).pace.goes_on([0.5], 1, 0.3)


def test_an_answer_expects_what_earlier_ones_have_shown():
    expected, guessed = [], []
    for acceptance in (0.05, 0.95):
        experience = Experience()
        Machine(0.1, 0.3, acceptance, experience=experience).generate(300)
        expected.append(experience.expected(DRAFT))
        new = Machine(0.1, 0.3, 0.7, experience=experience)
        new.generate(30)
        guessed.append(sum(new.numbers))
    assert expected[0] < 0.6 < 0.85 < expected[1]
    assert guessed[0] < guessed[1]


def test_costs_follow_a_context_that_grows():
    costs = StepCosts()
    for i in range(2000):
        n = 1 if i % 4 == 0 else 5
        costs.ran(n, 1, (1 + 0.2 * (n - 1)) * (1 + i / 1000))
    assert costs.of(1) == pytest.approx(3.0, rel=0.15)
    assert costs.of(5) / costs.of(1) == pytest.approx(1.8, rel=0.1)
    assert 1.3 < costs.of(3) / costs.of(1) < 1.8  # never measured: between its neighbours


def test_a_run_that_the_system_held_up_does_not_count_for_much():
    costs = StepCosts()
    for _ in range(50):
        costs.ran(1, 1, 1.0)
    costs.ran(1, 1, 500.0)
    assert costs.of(1) < 1.3
