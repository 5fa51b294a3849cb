"""Beam search against every continuation there is, on models small enough to list them."""

from __future__ import annotations

import itertools
import math
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from engine.fakes import EOG, FakeConfig, FakeModel, FakeTokenizer, says
from llmgen.engine import SamplingParams
from llmgen.engine.beams import BeamOptions, BeamSearch
from llmgen.errors import LLMGenError, UsageError


class TinyModel(FakeModel):
    """A vocabulary of few tokens, with logits that depend on all tokens before."""

    def __init__(self, n_vocab, **kw):
        super().__init__(**kw)
        self.config = FakeConfig(vocab_size=n_vocab)
        self._view = np.zeros((8, n_vocab), dtype=np.float32)

    def logits(self, tokens):
        return super().logits(tokens)[: self.config.vocab_size]


def search(model, prompt, params, tokenizer=None, **options):
    found = BeamSearch(model, tokenizer, prompt, params, BeamOptions(**options)).run()
    assert all(seq.closed for seq in model.sequences)
    return found


def log_softmax(row):
    row = row.astype(np.float64)
    return row - row.max() - math.log(np.exp(row - row.max()).sum())


def every_answer(model, prompt, length, end, penalty):
    """(score, tokens) of every answer of up to ``length`` tokens, the best first."""
    n_vocab = model.config.vocab_size
    found = {}
    for tokens in itertools.product(range(n_vocab), repeat=length):
        logprob, kept = 0.0, []
        for token in tokens:
            logprob += log_softmax(model.logits([*prompt, *kept]))[token]
            if token == end:
                found[tuple(kept)] = logprob / (len(kept) + 1) ** penalty
                break
            kept.append(token)
        else:
            found[tokens] = logprob / length**penalty
    return sorted(((score, tokens) for tokens, score in found.items()), reverse=True)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("penalty", [0.0, -0.5])
def test_with_a_beam_for_every_prefix_it_finds_the_best(seed, penalty):
    """Three tokens, one of which ends: 8 beams hold every prefix of up to 3 tokens."""
    model = TinyModel(3)
    params = SamplingParams(max_tokens=4, stop_token_ids=(2,))
    prompt = [seed % 2, seed // 2 % 2, 0, seed % 3]
    found = search(model, prompt, params, n_beams=8, length_penalty=penalty)[:5]
    expected = every_answer(model, prompt, 4, 2, penalty)[:5]
    assert [beam.result.token_ids for beam in found] == [tokens for _, tokens in expected]
    assert [beam.score for beam in found] == pytest.approx([score for score, _ in expected], abs=1e-4)


@pytest.mark.parametrize("n_beams", [1, 2, 5, 20])
def test_without_an_end_it_is_the_plain_algorithm(n_beams):
    model = TinyModel(7)
    found = search(model, [1, 2], SamplingParams(max_tokens=5), n_beams=n_beams, length_penalty=1.0)
    live = [(0.0, ())]
    for _ in range(5):
        steps = [
            (score + log_softmax(model.logits([1, 2, *tokens]))[t], (*tokens, t))
            for score, tokens in live
            for t in range(7)
        ]
        live = sorted(steps, key=lambda step: -step[0])[:n_beams]
    assert [beam.result.token_ids for beam in found] == [tokens for _, tokens in live]
    assert [beam.score for beam in found] == pytest.approx([score / 5 for score, _ in live], abs=1e-4)
    assert [beam.logprob for beam in found] == pytest.approx([score for score, _ in live], abs=1e-4)
    assert {beam.result.finish_detail for beam in found} == {"max_tokens"}


def test_one_beam_is_greedy_with_penalties_bias_and_bans():
    from llmgen.engine import Session

    params = SamplingParams(
        temp=0.0,
        max_tokens=12,
        repeat_penalty=1.5,
        dry_multiplier=0.8,
        logit_bias={5: 3.0},
        banned_tokens=[7],
        ignore_eos=True,
    )
    [beam] = search(FakeModel(), [1, 2, 3], params, FakeTokenizer(), n_beams=1)
    greedy = Session(FakeModel(), FakeTokenizer()).generate([1, 2, 3], params)
    assert beam.result.token_ids == greedy.token_ids
    assert beam.result.text == greedy.text


def test_ends_stop_strings_and_early_stopping():
    params = SamplingParams(max_tokens=40)
    model = FakeModel(script=says("hello world", 1))
    best = search(model, [0], params, FakeTokenizer(), n_beams=3)[0]
    assert (best.result.text, best.result.finish_detail, best.result.matched) == ("hello world", "eog", EOG)
    assert len(best.result.token_ids) == 11
    best = search(
        FakeModel(script=says("hello world", 1)),
        [0],
        params.with_(stop=["lo w"]),
        FakeTokenizer(),
        n_beams=2,
    )[0]
    assert (best.result.text, best.result.finish_detail) == ("hel", "stop_string")
    spelled = FakeModel(script=lambda history: [*b"hel", 257, *b"lo", EOG][len(history) - 1])
    best = search(spelled, [0], params.with_(stop="<257>lo"), FakeTokenizer(), n_beams=2)[0]
    assert (best.result.text, best.result.matched) == ("hel", "<257>lo")
    early = FakeModel()
    search(early, [0], params, FakeTokenizer(), n_beams=2, early_stopping=True)
    late = FakeModel()
    search(late, [0], params, FakeTokenizer(), n_beams=2, length_penalty=-1.0)
    assert early.computed <= late.computed + 40


def test_log_probabilities_sum_to_the_total():
    params = SamplingParams(max_tokens=6, logprobs=3)
    for beam in search(TinyModel(9), [1], params, n_beams=3):
        assert sum(score.logprob for score in beam.result.logprobs) == pytest.approx(beam.logprob)
        assert all(len(score.top) == 3 for score in beam.result.logprobs)
        assert beam.as_dict()["score"] == beam.score


def test_limits_and_interruptions(monkeypatch):
    params = SamplingParams(max_tokens=100)
    found = search(TinyModel(9, n_ctx=8), [1, 2, 3], params, n_beams=2)
    assert {beam.result.finish_detail for beam in found} == {"context_full"}
    assert {len(beam.result.token_ids) for beam in found} == {6}
    assert search(TinyModel(9), [1], params.with_(max_tokens=0), n_beams=2)[0].result.token_ids == ()
    cancel = threading.Event()
    cancel.set()
    model = TinyModel(9)
    found = BeamSearch(model, None, [1], params, BeamOptions(2), cancel).run()
    assert found[0].result.finish_reason == "interrupted"
    slow = TinyModel(9)
    with monkeypatch.context() as patch:  # a clock on which each call takes a second
        patch.setattr("llmgen.engine.stopping.time", SimpleNamespace(monotonic=lambda: len(slow.calls)))
        found = search(slow, [1], params.with_(timeout=3.5), n_beams=2)
    assert found[0].result.finish_reason == "timeout"
    assert len(found[0].result.token_ids) == 4
    calls = []

    def interrupt():
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt

    model = TinyModel(9)
    model.before_call = interrupt
    with pytest.raises(KeyboardInterrupt) as caught:
        search(model, [1], params, n_beams=2)
    found = caught.value.result
    assert found[0].result.finish_detail == "keyboard"
    assert len(found[0].result.token_ids) == 3


@pytest.mark.parametrize("error", [LLMGenError("broken"), MemoryError()])
def test_an_error_leaves_what_was_found(error):
    model, calls = TinyModel(9), []

    def fail():
        calls.append(1)
        if len(calls) == 4:
            raise error

    model.before_call = fail
    search = BeamSearch(model, None, [1], SamplingParams(max_tokens=100), BeamOptions(2))
    with pytest.raises(type(error)):
        search.run()
    assert all(seq.closed for seq in model.sequences)
    assert [beam.result.finish_detail for beam in search.found] == ["error"] * 2
    assert [len(beam.result.token_ids) for beam in search.found] == [3, 3]


def test_wrong_options_are_refused():
    for bad in (0, 65, 1.5):
        with pytest.raises(UsageError, match="--beams"):
            BeamOptions(bad)
    with pytest.raises(UsageError, match="--length-penalty"):
        BeamOptions(2, math.nan)
    with pytest.raises(UsageError, match="shift"):
        search(FakeModel(), [1], SamplingParams(context_full="shift"), n_beams=2)


def test_a_hypothesis_that_dies_gives_its_cache_to_one_that_branches(monkeypatch):
    model = FakeModel()
    forks = []
    original = type(model.new_sequence()).fork

    def fork(sequence):
        forks.append(sequence.length)
        return original(sequence)

    monkeypatch.setattr(type(model.sequences[0]), "fork", fork)
    prompt = list(range(40))
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    BeamSearch(model, FakeTokenizer(), prompt, params, BeamOptions(n_beams=5)).run()
    assert forks == [40] * 4  # the first step, where one becomes five; nothing is copied whole after it
    assert all(sequence.closed for sequence in model.sequences[1:])
