"""Models that repeat themselves, drafts of every quality, and everything that an answer shows."""

from __future__ import annotations

import numpy as np

from engine.fakes import N_VOCAB, FakeModel, FakeTokenizer
from llmgen.engine import Session, SpeculativeConfig
from llmgen.engine.speculation.draft import DraftModel
from llmgen.engine.speculation.speculator import Speculation


class Repeating(FakeModel):
    """Its logits depend on little and are far apart, so that what it says comes again."""

    def logits(self, tokens):
        if self.script:
            return super().logits(tokens)
        return 2 * super().logits([tokens[-1] % 5, len(tokens) % 2])


class Draft(Repeating):
    """Logits of a model and noise: 0 makes them the same."""

    def __init__(self, n_ctx=512, noise=0.0, of=Repeating):
        super().__init__(n_ctx)
        self.noise = noise
        self.of = of

    def logits(self, tokens):
        row = self.of.logits(self, tokens)
        other = np.random.default_rng([len(tokens), tokens[-1]]).standard_normal(N_VOCAB)
        return (row + self.noise * other).astype(np.float32)


def speculation(draft=None, **options):
    """What guesses for a model: the draft where there is one, else a lookup."""
    config = SpeculativeConfig(**{"draft": "it" if draft else None, "lookup": not draft, **options})
    return Speculation(config, DraftModel(draft) if draft else None)


def session(model, guessing=None, **options):
    return Session(model, FakeTokenizer(), speculation=guessing, **options)


def seen(session, prompt, params):
    """All that an answer shows but its times, event by event."""
    events, states = [], []
    for event in session.stream(prompt, params):
        events.append((event.text, event.token_id, event.logprob, event.top_logprobs, event.finish_reason))
        states.append((session.tokens, session.cached_tokens))
    result = event.result
    return (
        *(events, states, result.text, result.token_ids, result.finish_reason, result.finish_detail),
        *(result.matched, result.logprobs, result.prompt_tokens),
    )
