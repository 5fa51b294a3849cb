"""The draft model's cache, its context, its errors."""

from __future__ import annotations

import math
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from engine.fakes import NEVER, FakeModel, FakeTokenizer
from engine.speculation.guessers import Draft, Repeating, seen, session, speculation
from llmgen.engine import Batch, Request, SamplingParams
from llmgen.engine.speculation.draft import DraftSequence, Question, role_of_guesses
from llmgen.engine.speculation.experience import Experience
from llmgen.errors import LLMGenError
from llmgen.model.runs import GUESSABLE
from llmgen.sampling.rejection import Guess

PROMPT = [5, 6, 7, 8, 9]
LONG = SamplingParams(max_tokens=2000, ignore_eos=True, seed=1)


@pytest.mark.parametrize("k", [1, 2, 4, 7])
def test_a_draft_that_is_the_model_is_always_right(k):
    """It must not fall behind by a token: not after a step whose guesses were all right, either."""
    model, draft = Repeating(2048), Draft(2048)
    guessing = speculation(draft, adaptive=False, k=k)
    stats = session(model, guessing).generate(PROMPT, LONG).speculation
    assert stats.acceptance_rate == 1
    assert stats.tokens == 1999
    assert stats.tokens_per_step == pytest.approx(k + 1, rel=0.01)
    assert draft.computed < model.computed  # no token twice


def test_it_is_right_again_after_wrong_guesses_and_pauses():
    """With noise at some tokens only: a wrong guess is cut off, and what comes after it is right."""

    class Sometimes(Draft):
        def logits(self, tokens):
            self.noise = 50.0 if len(tokens) % 10 == 3 else 0.0
            return super().logits(tokens)

    stats = (
        session(Repeating(2048), speculation(Sometimes(2048), adaptive=False))
        .generate(PROMPT, LONG)
        .speculation
    )
    assert stats.acceptance_rate > 0.6
    assert stats.guessed - stats.accepted < 2000 / 10 * 4


def test_its_cache_follows_conversations_rewinds_and_forks():
    draft = Draft()
    one = session(Repeating(), speculation(draft, adaptive=False))
    params = LONG.with_(max_tokens=9)
    for n in (0, 3, 20):
        one.rewind(n)
        prompt = [*one.tokens, 1, 2, *PROMPT]
        assert seen(one, prompt, params) == seen(session(Repeating()), prompt, params)
    computed = draft.computed
    result = one.generate([*one.tokens, 4], params)
    assert result.speculation.acceptance_rate == 1
    assert draft.computed - computed < 20  # of a conversation of 40 tokens only what is new
    fork = one.fork()
    computed = draft.computed
    fork.generate([*fork.tokens, 4], params)
    assert draft.computed - computed < 20
    fork.close()
    one.close()
    assert all(seq.closed for seq in draft.sequences)


def test_a_long_prompt_is_computed_in_pieces_between_the_model_s_tokens():
    model, draft = Repeating(4096), Draft(4096)
    stream = session(model, speculation(draft, adaptive=False)).stream([i % 250 for i in range(1300)], LONG)
    next(stream)
    assert draft.computed == 0  # the first token does not wait for the draft
    computed = []
    for _ in range(4):
        next(stream)
        computed.append(draft.computed)
    assert computed[:2] == [512, 1024]
    assert 1300 < computed[2] < 1312
    stream.close()


@pytest.mark.parametrize("n_ctx", [1, 4, 6, 30])
def test_a_smaller_context_ends_the_guessing_only(n_ctx):
    model, draft = Repeating(512), Draft(n_ctx)
    params = LONG.with_(max_tokens=100)
    one = session(model, speculation(draft, adaptive=False))
    assert seen(one, PROMPT, params) == seen(session(Repeating(512)), PROMPT, params)
    assert draft.computed <= n_ctx + 8


def test_tokens_that_the_draft_does_not_have_are_not_shown_to_it():
    draft = Draft()
    draft.config = type(draft.config)(vocab_size=200)
    whole = draft.logits
    draft.logits = lambda tokens: whole(tokens)[:200]
    draft._view = draft._view[:, :200]
    for prompt in (PROMPT, [230]):
        params = LONG.with_(max_tokens=60)
        expected = seen(session(Repeating()), prompt, params)
        assert seen(session(Repeating(), speculation(draft, adaptive=False)), prompt, params) == expected
    assert max(max(seq.tokens, default=0) for seq in draft.sequences) < 200


def test_after_a_pause_it_computes_the_last_tokens_only():
    """Nonsense for 1,000 tokens, for which it pauses ever longer; then it is right again, at a small price."""

    class Plain(FakeModel):
        def logits(self, tokens):
            return 2 * FakeModel.logits(self, tokens[-1:])

    class Late(Draft):
        def logits(self, tokens):
            self.noise = 60.0 if len(model.sequences[0].tokens) < 1000 else 0.0
            return super().logits(tokens)

    model, draft = Plain(4096), Late(4096, of=Plain)
    guessing = speculation(draft, adaptive=False, min_acceptance=0.5)
    params, early = LONG.with_(max_tokens=3000), [0]
    stream = session(model, guessing).stream(PROMPT, params)
    result = [early.append(draft.computed) or event for event in stream][-1].result
    assert early[1000] < 600  # of 1,000 tokens, and the guesses after them
    assert result.speculation.accepted > 700
    assert result.token_ids == session(Plain(4096)).generate(PROMPT, params).token_ids


def test_it_goes_on_with_the_last_tokens_and_keeps_what_it_knew_before():
    """What lies between is left out, until another text begins with the same tokens."""
    draft, text = Draft(), [i % 250 for i in range(200)]
    sequence = DraftSequence(draft)

    def computed(tokens):
        sequence.follow(tokens)
        while sequence.waits_for_prompt:
            sequence.compute_prompt()
        return draft.sequences[0].tokens

    sequence.begin(text[:100], 99)
    assert sequence.missing(text[:100]) == 99
    assert computed(text[:100]) == text[:99]
    assert sequence.missing(text) == 100
    sequence.skip(text, 32)
    assert sequence.missing(text) == 31
    assert computed(text) == text[:99] + text[168:199]
    sequence.skip([*text, *text], 32)
    assert computed([*text, *text]) == text[:99] + text[168:199] + text[168:199]
    other = [*text[:150], 9]
    sequence.begin(other, 150)
    assert sequence.missing(other) == 51
    assert computed(other) == text[:150]

    fresh = DraftSequence(draft)
    fresh.begin(text, 199)
    fresh.skip(text, 32)
    fresh.compute_prompt()
    assert draft.sequences[1].tokens == [text[0], *text[169:199]]  # the first may begin the text


def test_it_begins_in_runs_of_generated_tokens():
    """Of the last 16 it computes eight; the others go into the run that gives the logits of the first guess."""
    draft, text = Draft(512), [i % 250 for i in range(300)]
    sequence = DraftSequence(draft)
    sequence.begin(text, 299)
    sequence.skip(text, 16)
    assert sequence.waits_for_prompt
    sequence.compute_prompt()
    assert draft.calls == [("decode", 8)]
    assert not sequence.waits_for_prompt
    assert sequence.state.n_missing == 8


def test_rare_tokens_are_guessed_where_the_answer_has_them():
    common, rare = [5] * 30, [GUESSABLE]
    assert role_of_guesses([]) == role_of_guesses(common) == role_of_guesses(rare + common) == "guess"
    assert role_of_guesses(rare) == role_of_guesses(common + 2 * rare) == "generated"
    assert role_of_guesses(9 * rare + 2 * common + common[:4]) == "guess"  # these were long ago


def test_an_error_of_the_draft_ends_the_answer_that_asked_for_it():
    draft = Draft()

    def forward(parts, role, read=None):
        raise LLMGenError("the draft's file has gone")

    draft.forward = forward
    batch = Batch(Repeating(), FakeTokenizer(), speculation=speculation(draft, adaptive=False))
    [answer] = batch.run([Request(PROMPT, LONG)])
    assert "draft's file" in str(answer.error)
    assert answer.result.finish_detail == "error"
    assert answer.result.completion_tokens == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_damaged_draft_is_not_sure_of_its_guess(bad):
    """Where a constraint leaves the bad number out, the sampler does not mind it."""
    logits = np.array([1, 3, bad, 2], np.float32)
    sampler = SimpleNamespace(n_vocab=4, guess=lambda row: Guess(1))
    question = Question(SimpleNamespace(state=SimpleNamespace(tokens=[])), [5], 4, sampler, None)
    question.add(logits)
    assert question.confidences == [0.0]
    assert Experience().all_right(question.confidences) == 0.0


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_draft_at_work_is_stopped_by_a_cancel_token(role):
    model, draft, cancel = Repeating(4096), Draft(4096), threading.Event()
    one = session(model, speculation(draft, adaptive=False))
    stream = one.stream([i % 250 for i in range(600)], LONG, cancel=cancel)
    given = [next(stream).token_id]
    draft.slow_s = NEVER

    def stop():
        if draft.calls and role == "prefill":
            return
        draft.slow_s = NEVER if (role == "prefill" or len(draft.calls) > 2) else 0
        if draft.slow_s:
            cancel.set()

    draft.before_call = stop
    if role == "prefill":
        cancel.set()
    for event in stream:
        if event.token_id is not None:
            given.append(event.token_id)
    assert stream.result.finish_detail == "cancel"
    assert list(stream.result.token_ids) == given
    assert one.cached_tokens == len(one.tokens) - 1
