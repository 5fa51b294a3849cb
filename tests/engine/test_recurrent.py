"""Requests on a model with a recurrent state, which cannot be cut back: checkpoints at the end of a prompt."""

from __future__ import annotations

import numpy as np
import pytest

from engine.fakes import FakeModel, FakeTokenizer
from llmgen.backends.cpu.sequence import Sequence
from llmgen.backends.cpu.states import StateLayout
from llmgen.engine import Batch, Request, SamplingParams, Session
from llmgen.errors import Interrupted
from llmgen.model.states import KV, Recurrent

GREEDY = SamplingParams(temp=0.0, max_tokens=6, ignore_eos=True)
PROMPT = [i % 250 for i in range(1300)]


class RecurrentModel(FakeModel):
    """Its logits are a hash that grows with each token, kept in the recurrent state of a real sequence."""

    def __init__(self, n_ctx=2048):
        super().__init__(n_ctx)
        self.layout = StateLayout([KV(1, 16, 16), Recurrent(2)], n_ctx, 512, "f16")

    def new_sequence(self):
        return Sequence(self.layout)

    def forward(self, parts, role, read=np.copy):
        self._work(role, sum(len(part.ids) for part in parts))
        rows = []
        for part in parts:
            placed = self.layout.states[1]
            state = part.seq.memory()[placed.offset : placed.offset + 8].view(np.uint64)
            part.seq.begin_write(part.seq.length + len(part.ids))
            for token in part.ids:
                state[0] = int(state[0]) * 6364136223846793005 + token + 1 & 2**64 - 1
            part.seq.commit(len(part.ids))
            rows += [self.logits([int(state[0]) % 2**60])] * part.n_logits
        return read(np.array(rows))


@pytest.fixture
def model():
    return RecurrentModel()


def fresh(prompt, params=GREEDY):
    return Session(RecurrentModel(), FakeTokenizer()).generate(prompt, params).token_ids


def test_a_repeated_prompt_computes_its_last_token_only(model):
    session = Session(model, FakeTokenizer(), reuse="prompt")
    first = session.generate(PROMPT, GREEDY)
    assert [n for kind, n in model.calls if kind == "prompt"] == [512, 512, 275, 1]
    for _ in range(2):
        again = session.generate(PROMPT, GREEDY)
        assert again.timings.prefill_tokens == 1
        assert again.token_ids == first.token_ids == fresh(PROMPT)


def test_a_conversation_goes_on_from_the_end_and_another_prompt_from_its_beginning(model):
    session = Session(model, FakeTokenizer())
    first = session.generate(PROMPT, GREEDY)
    more = [*session.tokens, 7, 8]
    second = session.generate(more, GREEDY)
    assert second.timings.cached_tokens == len(PROMPT) + first.completion_tokens - 1
    changed = [*more[:-1], 9]  # differs in the last token
    assert session.generate(changed, GREEDY).timings.cached_tokens == len(more) - 1
    other = session.generate([*PROMPT[:-5], 1], GREEDY)
    assert other.timings.cached_tokens == 0
    assert other.token_ids == fresh([*PROMPT[:-5], 1])


def test_prompts_of_a_batch_and_a_shared_prefix(model):
    requests = [Request(PROMPT[:40], GREEDY.with_(temp=1.0, seed=i), i) for i in range(4)]
    requests += [Request([i], GREEDY, 100 + i) for i in range(3)]
    for answer in Batch(model, FakeTokenizer()).run(requests):
        request = answer.request
        assert answer.result.token_ids == fresh(request.prompt, request.params)
    assert sum(n for kind, n in model.calls if kind == "prompt") == 40 + 3 + 3


def test_a_call_that_was_stopped_leaves_no_half_state(model):
    session = Session(model, FakeTokenizer())

    def stop():
        if len(model.calls) == 2:
            raise Interrupted("stopped")

    seq = session._state.seq

    def forward(parts, role, read=np.copy):
        try:
            return RecurrentModel.forward(model, parts, role, read)
        except Interrupted:
            seq.memory()[:] = 9
            seq.roll_back()  # as a model does
            raise

    model.forward, model.before_call = forward, stop
    assert session.generate(PROMPT, GREEDY).finish_reason == "interrupted"
    model.before_call = None
    assert session.generate(PROMPT, GREEDY).token_ids == fresh(PROMPT)
    assert seq.length == len(PROMPT) + 5
