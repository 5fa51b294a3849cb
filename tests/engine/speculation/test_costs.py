"""What guessing costs and gains in whole answers, on a machine whose every run takes a known time."""

from __future__ import annotations

import pytest

from engine.fakes import FakeTokenizer
from engine.speculation.machine import Clock, Often, Plain, answers
from llmgen.engine import Batch, Request, SamplingParams, SpeculativeConfig
from llmgen.engine.speculation.costs import StepCosts
from llmgen.engine.speculation.draft import DraftModel
from llmgen.engine.speculation.speculator import Speculation

FLAT = [1.0, 1.12, 1.25, 1.4, 1.6, 1.8, 2.0, 2.25]
JUMP = [1.0, 1.8, 1.9, 2.0, 2.2, 2.4, 2.55, 2.7]  # a second token is dear, further ones are cheap
STEEP = [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5]
QWEN = [1.0, 1.15, 1.37, 1.62, 2.07, 2.35, 2.5, 2.74]  # Qwen2.5 Coder 1.5B on two cores with AMX
PROMPTS = [(40, 0.05), (600, 0.03)]


@pytest.mark.parametrize("steps", [FLAT, JUMP, STEEP])
@pytest.mark.parametrize("guess", [0.0, 0.06, 0.4])
def test_a_short_answer_never_loses_more_than_3_percent(monkeypatch, steps, guess):
    """The draft's computation of the prompt is part of that."""
    for acceptance in (0.0, 0.3, 0.5):
        for seed, prompt in enumerate(PROMPTS):
            clock = Clock(monkeypatch, seed)
            [time] = answers(clock, steps, guess, acceptance, prompt=prompt, seed=seed)
            assert time < 1.03


@pytest.mark.parametrize(
    ("steps", "guess", "acceptance", "most"),
    [
        (QWEN, 0.4, 0.9, 0.88),
        (QWEN, 0.4, 1.0, 0.8),
        (FLAT, 0.0, 0.5, 0.85),
        (FLAT, 0.06, 0.8, 0.7),
        (FLAT, 0.4, 0.9, 0.9),
        (FLAT, 0.4, 1.0, 0.75),
    ],
)
def test_a_short_answer_gains_where_it_can(monkeypatch, steps, guess, acceptance, most):
    times = []
    for seed, prompt in enumerate(PROMPTS):
        clock = Clock(monkeypatch, seed)
        times += answers(clock, steps, guess, acceptance, prompt=prompt, seed=seed)
    assert sum(times) / len(times) < most


@pytest.mark.parametrize("acceptance", [0.3, 0.55])
def test_slow_first_steps_do_not_look_like_a_gain(monkeypatch, acceptance):
    """Steps after a prompt may take longer than later ones: what a plain step takes is checked again."""
    times = []
    for seed in range(4):
        clock = Clock(monkeypatch, seed)
        clock.slow_until = 6.0
        times += answers(clock, QWEN, 0.4, acceptance, lengths=(128,), seed=seed)
    assert max(times) < 1.04  # of which plain decoding would have lost 0.6% itself


def test_a_machine_that_becomes_faster_does_not_look_like_a_gain():
    """What was guessed since the last plain steps is valued by the next ones."""
    costs = StepCosts()
    for _ in range(20):
        costs.ran(1, 1, 1.0)
    for _ in range(6):
        costs.ran(2, 1, 1.6)
        costs.accepted(1)
    assert costs.loss_s == pytest.approx(6 * (1.6 - 2.0))
    for _ in range(2):
        costs.ran(1, 1, 0.7)
    assert costs.loss_s == pytest.approx(6 * (1.6 - 2 * 0.834), abs=0.05)


def test_a_delayed_plain_step_is_not_believed():
    costs = StepCosts()
    for _ in range(10):
        costs.ran(1, 1, 1.0)
    for i in range(40):
        costs.ran(1, 1, 1.6 if i % 2 else 1.0)
    assert costs.of(1) == pytest.approx(1.0)


def test_many_short_answers_lose_no_more_than_one(monkeypatch):
    times = answers(Clock(monkeypatch), FLAT, 0.4, 0.2, lengths=(24,) * 12)
    assert sum(times) / len(times) < 1.025


def test_a_draft_as_slow_as_the_model_is_never_asked(monkeypatch):
    clock = Clock(monkeypatch)
    draft = Often(clock, FLAT, 0.05)
    speculation = Speculation(SpeculativeConfig(draft="it"), DraftModel(draft), draft_share=1.0)
    batch = Batch(Plain(clock, FLAT, 0.05), FakeTokenizer(), speculation=speculation)
    [answer] = batch.run([Request([1, 2, 3], SamplingParams(max_tokens=200, ignore_eos=True))])
    assert answer.result.completion_tokens == 200
    assert draft.computed == 0
    assert answer.result.speculation.idle == "never"


def test_a_long_prompt_does_not_keep_a_draft_from_guessing(monkeypatch):
    """It begins with the last tokens."""
    clock = Clock(monkeypatch)
    draft = Often(clock, [0.2 * step for step in QWEN], 0.01)
    speculation = Speculation(SpeculativeConfig(draft="it"), DraftModel(draft), 0.2)
    batch = Batch(Plain(clock, QWEN, 0.05), FakeTokenizer(), speculation=speculation)
    params = SamplingParams(temp=0.0, max_tokens=24, ignore_eos=True)
    [answer] = batch.run([Request([i % 250 for i in range(3000)], params)])
    assert answer.result.speculation.accepted > 12
    assert draft.computed < 50


def test_a_slow_prompt_does_not_keep_a_draft_from_guessing(monkeypatch):
    """The first prompt of a program may take long; what the draft takes is measured when it is loaded."""
    clock = Clock(monkeypatch)
    speculation = Speculation(SpeculativeConfig(draft="it"), DraftModel(Often(clock, [0.3] * 8, 0.03)), 0.3)
    speculation.warm_up()
    batch = Batch(Plain(clock, FLAT, 1.0), FakeTokenizer(), speculation=speculation)
    params = SamplingParams(temp=0.0, max_tokens=24, ignore_eos=True)
    [answer] = batch.run([Request([1, 2, 3] * 7, params)])
    assert answer.result.speculation.accepted > 8


@pytest.mark.parametrize(("acceptance", "idle"), [(0.0, "spent"), (1.0, None)])
def test_what_kept_it_from_guessing_is_told(monkeypatch, acceptance, idle):
    """Three steps are measured first; a second answer goes on from there, with what the first has left."""
    clock = Clock(monkeypatch)
    draft = Often(clock, [0.4] * 8, 0.02)
    draft.acceptance = acceptance
    speculation = Speculation(SpeculativeConfig(draft="it"), DraftModel(draft), 0.4)
    batch = Batch(Plain(clock, FLAT, 0.05), FakeTokenizer(), speculation=speculation)
    told = []
    for n in (3, 40, 12):
        params = SamplingParams(temp=0.0, max_tokens=n, ignore_eos=True)
        [answer] = batch.run([Request([1, 2, 3, n], params)])
        told.append(answer.result.speculation.idle)
    assert told == ["measuring", None, idle]


def test_with_a_lookup_too_it_is_the_draft_s_reason_that_is_told(monkeypatch):
    """Nothing occurs twice in this text, and the draft is too slow to be asked."""
    clock = Clock(monkeypatch)
    told = []
    for draft in (None, Often(clock, FLAT, 0.05)):
        config = SpeculativeConfig(draft="it" if draft else None, lookup=True)
        speculation = Speculation(config, DraftModel(draft) if draft else None, draft_share=1.0)
        model = Plain(clock, FLAT, 0.05)
        model.script = lambda tokens: tokens[-1] + 1
        batch = Batch(model, FakeTokenizer(), speculation=speculation)
        [answer] = batch.run([Request([1, 2], SamplingParams(temp=0.0, max_tokens=30))])
        assert answer.result.speculation.guessed == 0
        told.append(answer.result.speculation.idle)
    assert told == ["no_match", "never"]


@pytest.mark.parametrize(("n", "told"), [(32, False), (33, True)])
def test_the_gain_is_told_of_answers_that_are_long_enough(monkeypatch, n, told):
    """Of the tokens after the first one, which is the prompt's."""
    clock = Clock(monkeypatch)
    speculation = Speculation(SpeculativeConfig(draft="it"), DraftModel(Often(clock, [0.2] * 8, 0.01)), 0.2)
    batch = Batch(Plain(clock, FLAT, 0.05), FakeTokenizer(), speculation=speculation)
    [answer] = batch.run([Request([1, 2, 3], SamplingParams(temp=0.0, max_tokens=n, ignore_eos=True))])
    stats = answer.result.speculation
    assert stats.accepted > 5
    assert (stats.speedup is not None) == told
    if told:
        assert stats.speedup == pytest.approx(32 / answer.result.timings.decode_s, rel=0.1)


@pytest.mark.parametrize("n", [2, 4])
def test_answers_of_a_batch_share_what_may_be_lost(monkeypatch, n):
    def time(speculation):
        clock = Clock(monkeypatch)
        if speculation:
            draft = Often(clock, [0.3] * 8, 0.01)
            draft.acceptance = 0.0
            speculation = Speculation(SpeculativeConfig(draft="it"), DraftModel(draft), 0.3)
        batch = Batch(Plain(clock, FLAT, 0.05), FakeTokenizer(), slots=n, speculation=speculation)
        params = SamplingParams(temp=0.0, max_tokens=96, ignore_eos=True)
        for _ in batch.run(Request([i, 7, 8, 9], params) for i in range(n)):
            pass
        return clock.now

    assert time(True) < 1.03 * time(None)


def test_nothing_is_granted_twice():
    costs = StepCosts()
    for _ in range(20):
        costs.ran(1, 1, 1.0)
    room = costs.room_s
    costs.grant(1, 1, 0.1, 0.2)
    assert costs.room_s == pytest.approx(room - 0.3 - (costs.of(2) - 1))
    costs.ran(1, 1, 1.0)
    assert costs.room_s == room


def test_long_runs_are_tried_step_by_step():
    """Their costs are not known before: none is more than twice as long as those that were measured."""
    costs = StepCosts()
    for _ in range(200):
        costs.ran(1, 1, 1.0)
    for measured, affordable in ((1, 1), (2, 3), (4, 7)):
        costs.ran(measured, 1, 1.0 + 0.01 * measured)
        assert costs.affordable(7, 1, 0.0, 0.0) == affordable


def test_renewed_nothing_is_known(monkeypatch):
    clock = Clock(monkeypatch)
    speculation = Speculation(SpeculativeConfig(draft="it"), DraftModel(Often(clock, [0.2] * 8, 0.01)), 0.2)
    batch = Batch(Plain(clock, FLAT, 0.05), FakeTokenizer(), speculation=speculation)
    [_] = batch.run([Request([1, 2, 3], SamplingParams(temp=0.0, max_tokens=200, ignore_eos=True))])
    renewed = speculation.renewed()
    assert speculation.costs.known() is not None
    assert renewed.costs.known() is None
    assert renewed.experience.known() == Speculation(speculation.config).experience.known()
    assert (renewed.config, renewed.draft) == (speculation.config, speculation.draft)
    assert renewed.draft_share == 0.2
