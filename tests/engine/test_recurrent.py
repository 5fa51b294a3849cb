"""Requests on a model with a recurrent state, which cannot be cut back: checkpoints at the end of a prompt."""

from __future__ import annotations

import numpy as np
import pytest

from engine.fakes import FakeModel, FakeTokenizer
from llmgen.backends.cpu import cache_file
from llmgen.backends.cpu.sequence import Sequence
from llmgen.backends.cpu.states import StateLayout
from llmgen.engine import Batch, Request, SamplingParams, Session
from llmgen.errors import Interrupted
from llmgen.model.kv_config import KVCacheConfig
from llmgen.model.states import KV, Recurrent

GREEDY = SamplingParams(temp=0.0, max_tokens=6, ignore_eos=True)
PROMPT = [i % 250 for i in range(1300)]
OWNER = cache_file.Owner("fake", "none", "none")


class RecurrentModel(FakeModel):
    """Its logits are a hash that grows with each token, kept in the recurrent state of a real sequence."""

    def __init__(self, n_ctx=2048):
        super().__init__(n_ctx)
        self.layout = StateLayout([KV(1, 16, 16), Recurrent(2)], n_ctx, 512, KVCacheConfig())

    def new_sequence(self):
        return Sequence(self.layout)

    def save_sequence(self, path, seq, tokens, n_prompt):
        cache_file.save(path, OWNER, seq, tokens, n_prompt)

    def load_sequence(self, path, seq):
        return cache_file.load(path, OWNER, 256, seq)

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


def test_requests_with_the_same_beginning_compute_it_once(model):
    requests = [Request([*PROMPT[:700], 7, i, 9], GREEDY, i) for i in range(6)]
    for answer in Batch(model, FakeTokenizer()).run(requests):
        request = answer.request
        assert answer.result.token_ids == fresh(request.prompt, request.params)
    # the second one's is compared with the first, and all go on from what these two have in common
    assert sum(n for kind, n in model.calls if kind == "prompt") == 701 + 6 * 2


def test_turns_that_are_taken_back_are_not_computed_again(model):
    session = Session(model, FakeTokenizer())
    ends, prompt = [], PROMPT[:40]
    for turn in range(4):
        session.generate(prompt, GREEDY)
        ends.append(session.cached_tokens)
        prompt = [*session.tokens, 240 + turn, 8, 9]
    for turn in (2, 1, 0):  # /undo, and something else in place of what was said
        before = session.tokens[: ends[turn]]
        session.rewind(len(session.tokens) - len(before))
        again = session.generate([*before, 3, 4], GREEDY)
        assert again.timings.cached_tokens == ends[turn]
        assert again.token_ids == fresh([*before, 3, 4])
        session.generate([*before, 3, 4], GREEDY)  # another answer to the same
        assert session.cached_tokens == ends[turn] + 2 + 5


def test_a_long_prompt_has_checkpoints_on_the_way():
    model = RecurrentModel(n_ctx=16384)
    session, prompt = Session(model, FakeTokenizer()), [i % 250 for i in range(10000)]
    session.generate(prompt, GREEDY)
    changed = [*prompt[:9000], 1, 2, 3]
    assert session.generate(changed, GREEDY).timings.cached_tokens == 8192


def test_a_prompt_cache_file_has_the_last_checkpoints(tmp_path):
    """The same prompt from a file computes its last token only."""
    session = Session(RecurrentModel(), FakeTokenizer(), reuse="prompt")
    first = session.generate(PROMPT, GREEDY)
    session.save(tmp_path / "cache")
    other = Session(RecurrentModel(), FakeTokenizer(), reuse="prompt")
    other.load(tmp_path / "cache")
    again = other.generate(PROMPT, GREEDY)
    assert (again.timings.prefill_tokens, again.token_ids) == (1, first.token_ids)


def test_a_full_context_drops_tokens_and_computes_the_rest_anew():
    session = Session(RecurrentModel(n_ctx=64), FakeTokenizer())
    result = session.generate(PROMPT[:30], GREEDY.with_(max_tokens=90, context_full="shift"))
    assert result.completion_tokens == 90
    kept = session.tokens
    assert len(kept) < 64
    # the state knows the tokens that were kept, and no others
    assert list(fresh(kept[:-1], GREEDY.with_(max_tokens=1))) == kept[-1:]


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
