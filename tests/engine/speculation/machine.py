"""A machine on which every run takes a known time: models that move a clock, and nothing else that takes any."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np

from engine.fakes import FakeModel, FakeTokenizer
from llmgen.engine import SamplingParams, Session, SpeculativeConfig
from llmgen.engine.speculation.draft import DraftModel
from llmgen.engine.speculation.speculator import Speculation

CLOCKED = ("scheduler", "completion", "request_state", "speculation.speculator")
"""Modules of the engine that look at the clock."""


class Clock:
    """What runs take varies by some percent."""

    def __init__(self, monkeypatch, seed=0):
        self.now = 0.0
        self.slow_until = 0.0
        self._random = random.Random(seed)
        for name in CLOCKED:
            clock = SimpleNamespace(perf_counter=lambda: self.now)
            monkeypatch.setattr(f"llmgen.engine.{name}.time", clock)

    def wait(self, seconds):
        if self.now < self.slow_until:
            seconds *= 1.15
        self.now += seconds * self._random.uniform(0.97, 1.03)


class Plain(FakeModel):
    """What follows depends on the last token only, wherever it stands."""

    def __init__(self, clock, steps, prompt_token):
        """A run of n generated tokens takes steps[n - 1], and each token of a prompt ``prompt_token``."""
        super().__init__(4096)
        self._clock, self._steps, self._prompt_token = clock, steps, prompt_token

    def forward(self, parts, role, read=np.copy):
        n = sum(len(part.ids) for part in parts)
        self._clock.wait(self._prompt_token * n if role == "prompt" else self._steps[n - 1])
        return super().forward(parts, role, read)

    def logits(self, tokens):
        return super().logits(tokens[-1:])


class Often(Plain):
    """Says the same with a probability of ``acceptance``."""

    acceptance, random = 1.0, random.Random()

    def logits(self, tokens):
        row = super().logits(tokens)
        return row if self.random.random() < self.acceptance else np.roll(row, 1)


def answers(clock, steps, guess, acceptance, *, prompt=(40, 0.05), lengths=(96,), seed=0, memory=None):
    """The times of answers of so many tokens of a program, one after the other, each by that of as many plain steps.

    steps: what runs of 1 to 8 tokens take; guess: what the draft takes, as a share of the model's time; prompt: its
    length, and the time of one of its tokens; memory: what an earlier program has kept, if anything.
    """
    n_prompt, prompt_token = prompt
    model = Plain(clock, steps, prompt_token)
    draft = Often(clock, [guess] * 8, guess * prompt_token)
    draft.acceptance, draft.random = acceptance, random.Random(seed)
    speculation = Speculation(SpeculativeConfig(draft="it"), DraftModel(draft), guess)
    speculation.warm_up()
    if memory:
        memory.load(speculation.costs, speculation.experience)
    tokens = random.Random(seed)
    times = list[float]()
    with Session(model, FakeTokenizer(), speculation=speculation, reuse="none") as session:
        for n in lengths:
            params = SamplingParams(temp=0.0, max_tokens=n, ignore_eos=True)
            result = session.generate([tokens.randrange(250) for _ in range(n_prompt)], params)
            times.append(result.timings.decode_s / (n - 1) / steps[0])
    if memory:
        memory.save(speculation.costs, speculation.experience)
    return times
