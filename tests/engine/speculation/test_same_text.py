"""What is chosen is the same with guesses as without, to the last bit, in whatever way an answer goes."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.fakes import EOG, N_VOCAB, FakeTokenizer, says
from engine.speculation.guessers import Draft, Repeating, seen, session, speculation
from llmgen.engine import Batch, Request, SamplingParams
from llmgen.engine.scheduler import Scheduler

PROMPT = [5, 6, 7, 8, 5, 6, 7, 9]


class Alternating:
    """Even and odd tokens in turn, and the end of the text where ``n`` of them are there."""

    def __init__(self, n=1000, done=0):
        self.n, self.done = n, done

    def allowed(self):
        ids = np.arange(N_VOCAB)
        return (ids == EOG) if self.done >= self.n else (ids % 2 == self.done % 2) & (ids < 256)

    def accept(self, token):
        self.done += 1

    def fork(self):
        return Alternating(self.n, self.done)


class Counted:
    """A processor that minds how often it is called."""

    def __init__(self):
        self.calls = 0

    def __call__(self, tokens, logits):
        self.calls += 1
        logits[(self.calls * 7 + len(tokens)) % N_VOCAB] += 9
        return logits


BASE = SamplingParams(max_tokens=40, ignore_eos=True)
CHAINS = {
    "greedy": BASE.with_(temp=0.0),
    "default": BASE,
    "hot": BASE.with_(temp=3.0, top_k=0, top_p=1.0, min_p=0.0),
    "few": BASE.with_(top_k=3),
    "penalties": BASE.with_(
        repeat_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.3, repeat_last_n=20
    ),
    "dry": BASE.with_(dry_multiplier=2.0, dry_allowed_length=1),
    "xtc": BASE.with_(xtc_probability=0.5, xtc_threshold=0.05),
    "mirostat": BASE.with_(mirostat=2, mirostat_tau=3.0, mirostat_eta=0.3),
    "mirostat 1": BASE.with_(mirostat=1),
    "typical": BASE.with_(typical_p=0.5, dynatemp_range=0.5),
    "bias": BASE.with_(logit_bias={10: 5.0, 11: -5.0}, banned_tokens=(12, "ab")),
    "constraint": BASE.with_(constraint=Alternating()),
    "constraint that ends": BASE.with_(constraint=Alternating(17), ignore_eos=False),
    "raw logprobs": BASE.with_(logprobs=3),
    "processed logprobs": BASE.with_(logprobs=3, logprobs_mode="processed", top_k=5),
    "stop": BASE.with_(stop=("ab", "zz", "q"), top_k=20),
    "stop token": BASE.with_(stop_token_ids=tuple(range(60, 80))),
    "min tokens": SamplingParams(max_tokens=40, min_tokens=20, logit_bias={EOG: 8.0}),
}


def guessers(name):
    if name == "lookup":
        return None
    return Draft(noise={"twin": 0.0, "fair": 0.7, "poor": 30.0}[name])


@pytest.mark.parametrize("guesser", ["lookup", "twin", "fair", "poor"])
def test_there_are_right_and_wrong_guesses(guesser):
    """Without which the tests below would show nothing."""
    right = wrong = 0
    for params in CHAINS.values():
        one = session(Repeating(), speculation(guessers(guesser), adaptive=False))
        stats = one.generate(PROMPT, params.with_(seed=0)).speculation
        right, wrong = right + stats.accepted, wrong + stats.guessed - stats.accepted
    assert right > (1 if guesser == "poor" else 20)
    assert (wrong == 0) == (guesser == "twin")


@pytest.mark.parametrize("guesser", ["lookup", "twin", "fair", "poor"])
@pytest.mark.parametrize("chain", CHAINS)
def test_any_chain(chain, guesser):
    for seed in (0, 1):
        params = CHAINS[chain].with_(seed=seed)
        expected = seen(session(Repeating()), PROMPT, params)
        for options in ({"adaptive": False, "k": 1 + seed}, {"adaptive": False, "k": 7}, {}):
            found = seen(session(Repeating(), speculation(guessers(guesser), **options)), PROMPT, params)
            assert found == expected


@pytest.mark.parametrize("extra", [True, False])
@pytest.mark.parametrize("k", range(1, 9))
def test_any_number_of_guesses_and_tokens(k, extra):
    for n in (1, 2, 3, 9):
        params = SamplingParams(max_tokens=n, seed=4)
        model = Repeating()
        guessing = speculation(Draft(), k=k, adaptive=False, extra_token=extra)
        assert seen(session(model, guessing), PROMPT, params) == seen(session(Repeating()), PROMPT, params)
        assert model.computed <= len(PROMPT) + n - 1  # nothing beyond the last token is guessed


def test_a_processor_sees_each_token_once():
    for draft in (None, Draft()):
        counted = [Counted(), Counted()]
        plain = seen(session(Repeating()), PROMPT, BASE.with_(seed=1, processors=counted[0]))
        guessed = seen(
            session(Repeating(), speculation(draft)), PROMPT, BASE.with_(seed=1, processors=counted[1])
        )
        assert plain == guessed
        assert counted[0].calls == counted[1].calls == 40


@pytest.mark.parametrize("n_ctx", range(20, 29))
@pytest.mark.parametrize("full", ["stop", "shift"])
def test_a_full_context(full, n_ctx):
    params = BASE.with_(seed=3, context_full=full, context_keep=2, max_tokens=60)
    expected = seen(session(Repeating(n_ctx)), PROMPT, params)
    for draft in (None, Draft(n_ctx), Draft(n_ctx - 7), Draft(5)):
        guessing = speculation(draft, adaptive=False, k=7)
        assert seen(session(Repeating(n_ctx), guessing), PROMPT, params) == expected


@pytest.mark.parametrize("stop", ["needle", "edl", "e"])
@pytest.mark.parametrize("text", ["a needle in a needless stack", "needles", "no ne e dle needle"])
def test_stop_strings_across_accepted_tokens(text, stop):
    script = says(text, len(PROMPT))
    params = SamplingParams(temp=0.0, stop=stop, min_tokens=3)
    expected = seen(session(Repeating(script=script)), PROMPT, params)
    draft = Draft()
    draft.script = script
    for k in (1, 3, 7):
        guessing = speculation(draft, adaptive=False, k=k)
        assert seen(session(Repeating(script=script), guessing), PROMPT, params) == expected


@pytest.mark.parametrize("reuse", ["all", "prompt", "none"])
@pytest.mark.parametrize("guesser", ["lookup", "twin", "fair"])
def test_a_conversation(reuse, guesser):
    """What a session keeps of an answer does not depend on what was computed ahead of it."""
    both = (
        session(Repeating(), reuse=reuse),
        session(Repeating(), speculation(guessers(guesser)), reuse=reuse),
    )
    for n in (3, 11, 6, 30):
        answers = []
        for one in both:
            params = BASE.with_(seed=n, max_tokens=n)
            answers.append(seen(one, [*(one.tokens or PROMPT), 33, n], params))
            one.rewind(n // 3)
            answers[-1] += (one.tokens, one.cached_tokens)
        assert answers[0] == answers[1]


def test_forks_and_pauses_between_two_events():
    for guesser in ("lookup", "twin", "fair"):
        plain = (
            session(Repeating()),
            session(Repeating(), speculation(guessers(guesser), adaptive=False, k=7)),
        )
        shown = []
        for one in plain:
            stream, forks = one.stream(PROMPT, BASE.with_(seed=2)), []
            for _ in range(12):
                next(stream)
                fork = one.fork()
                forks.append((fork.tokens, fork.cached_tokens))
                forks.append(seen(fork, [*fork.tokens, 1], BASE.with_(seed=3, max_tokens=5)))
            stream.close()
            shown.append((forks, stream.result.token_ids, one.tokens, one.cached_tokens))
        assert shown[0] == shown[1]


@pytest.mark.parametrize("n", range(1, 12))
def test_an_answer_that_is_ended_has_what_was_given_out(n):
    """By a callback, by closing, by a cancel token: however far ahead the model is."""
    expected = session(Repeating()).generate(PROMPT, BASE.with_(seed=5)).token_ids[:n]
    for way in ("callback", "close", "cancel"):
        one = session(Repeating(), speculation(Draft(), adaptive=False, k=7))
        given, token = [], threading.Event()
        stream = one.stream(
            PROMPT,
            BASE.with_(seed=5),
            cancel=token,
            callback=lambda event, given=given, way=way: way == "callback" and len(given) == n - 1,
        )
        for event in stream:
            given.append(event.token_id)
            if len(given) == n:
                if way == "close":
                    stream.close()
                    break
                if way == "cancel":
                    token.set()
        assert stream.result.token_ids == expected
        assert (one.tokens, one.cached_tokens) == ([*PROMPT, *expected], len(PROMPT) + n - 1)


@pytest.mark.parametrize("call", range(3, 9))
def test_ctrl_c_in_a_run_with_guesses(call):
    """Nothing of the run is kept; what was given out before is."""
    expected = session(Repeating()).generate(PROMPT, BASE.with_(seed=5))
    model = Repeating()
    one = session(model, speculation(Draft(), adaptive=False, k=3))

    def interrupt():
        if len(model.calls) == call:
            raise KeyboardInterrupt

    model.before_call = interrupt
    events = []
    stream = one.stream(PROMPT, BASE.with_(seed=5), callback=events.append)
    with pytest.raises(KeyboardInterrupt) as raised:
        stream.run()
    model.before_call = None
    given = [event.token_id for event in events if event.token_id is not None]
    assert raised.value.result.token_ids == tuple(given) == expected.token_ids[: len(given)]
    assert len(given) == 1 + 4 * (call - 1)
    assert (one.tokens, one.cached_tokens) == ([*PROMPT, *given], len(PROMPT) + len(given) - 1)
    again = one.generate([*one.tokens, 1], BASE.with_(seed=6))
    plain = session(Repeating())
    plain.generate(PROMPT, BASE.with_(seed=5, max_tokens=len(given)))
    assert again.token_ids == plain.generate([*plain.tokens, 1], BASE.with_(seed=6)).token_ids


def test_a_request_that_is_cancelled_beside_others_has_what_was_given_out():
    requests = [Request([*PROMPT, i], BASE.with_(seed=i), i) for i in range(2)]
    expected = [session(Repeating()).generate(r.prompt, r.params).token_ids for r in requests]
    for n in range(1, 12):
        scheduler = Scheduler(Repeating(), FakeTokenizer(), speculation=speculation(Draft(), adaptive=False))
        n_given, found = {0: 0, 1: 0}, {}
        for request in requests:
            scheduler.submit(request)
        while scheduler.has_work:
            for output in scheduler.step():
                if output.answer:
                    found[output.request.key] = output.answer.result.token_ids
                    continue
                n_given[output.request.key] += 1
                if output.request.key == 0 and n_given[0] == n:
                    scheduler.cancel(output.request)
        scheduler.close()
        assert found == {0: expected[0][:n], 1: expected[1]}


@given(
    prompt=st.lists(st.integers(0, 250), min_size=1, max_size=12),
    seed=st.integers(0, 2**64 - 1),
    chain=st.sampled_from(sorted(CHAINS)),
    k=st.integers(1, 8),
    noise=st.sampled_from([None, 0.0, 0.5, 2.0]),
    extra=st.booleans(),
    adaptive=st.booleans(),
    n_ctx=st.integers(14, 80),
    full=st.sampled_from(["stop", "shift"]),
)
@settings(max_examples=60, deadline=None)
def test_anything(prompt, seed, chain, k, noise, extra, adaptive, n_ctx, full):
    params = CHAINS[chain].with_(seed=seed, context_full=full)
    guessing = speculation(
        None if noise is None else Draft(n_ctx, noise), k=k, extra_token=extra, adaptive=adaptive
    )
    expected = seen(session(Repeating(n_ctx)), prompt, params)
    assert seen(session(Repeating(n_ctx), guessing), prompt, params) == expected


@pytest.mark.parametrize("guesser", ["lookup", "twin", "fair", "poor"])
def test_a_batch(guesser):
    requests = [
        Request([*PROMPT[: 1 + i], 7 + i % 3], params.with_(seed=i), i)
        for i, params in enumerate(CHAINS.values())
    ]
    expected = [session(Repeating()).generate(r.prompt, r.params) for r in requests]
    for slots in (1, 2, 3, 5, 8):
        model, draft = Repeating(), guessers(guesser)
        batch = Batch(model, FakeTokenizer(), slots=slots, speculation=speculation(draft, adaptive=False))
        for answer in batch.run(requests):
            alone = expected[answer.request.key]
            assert answer.result.token_ids == alone.token_ids
            assert answer.result.logprobs == alone.logprobs
            assert answer.result.finish_detail == alone.finish_detail
        sequences = model.sequences + (draft.sequences if draft else [])
        assert all(seq.closed for seq in sequences)


@pytest.mark.parametrize("slots", [3, 5, 7])
@pytest.mark.parametrize("extra_token", [True, False])
def test_answers_of_a_batch_take_turns_with_what_a_run_has_left(slots, extra_token):
    """Every answer gets guesses, and no run has more than eight tokens."""
    params = SamplingParams(temp=0.0, max_tokens=40, ignore_eos=True)
    prompts = [[*range(i, i + 8)] * 2 for i in range(slots)]
    expected = [session(Repeating()).generate(prompt, params).token_ids for prompt in prompts]
    model = Repeating()
    guessing = speculation(adaptive=False, k=7, extra_token=extra_token)
    batch = Batch(model, FakeTokenizer(), slots=slots, speculation=guessing)
    requests = [Request(prompt, params, i) for i, prompt in enumerate(prompts)]
    found = {answer.request.key: answer.result for answer in batch.run(requests)}
    assert [found[i].token_ids for i in range(slots)] == expected
    assert all(found[i].speculation.accepted > 3 for i in range(slots))
    assert max(n for kind, n in model.calls if kind == "decode") == 8
