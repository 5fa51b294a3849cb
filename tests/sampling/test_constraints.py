"""Constraints and processors of the program's own, before everything else."""

from __future__ import annotations

import numpy as np
import pytest

from engine.fakes import EOG, FakeModel, FakeTokenizer
from llmgen import Sampler, SamplingParams
from llmgen.engine import BeamOptions, BeamSearch, Session
from llmgen.errors import LLMGenError, UsageError
from naive.sampling.sampler import NaiveSampler

ROW = np.array([1, 4, 2, 3], dtype=np.float32)
GREEDY = SamplingParams(temp=0)


class Words:
    """Allows the beginnings of some sequences of tokens, and the end after a whole one."""

    def __init__(self, words, n_vocab, end, so_far=()):
        self.words, self.n_vocab, self.end, self.so_far = words, n_vocab, end, so_far

    def allowed(self):
        mask = np.zeros(self.n_vocab, dtype=bool)
        here = len(self.so_far)
        for word in self.words:
            if word[:here] == self.so_far:
                mask[word[here] if here < len(word) else self.end] = True
        return mask

    def accept(self, token):
        self.so_far = (*self.so_far, token)

    def fork(self):
        return Words(self.words, self.n_vocab, self.end, self.so_far)


def test_a_constraint_leads_each_answer_anew():
    words = Words([(2, 0), (2, 3, 3)], 4, end=1)
    params = GREEDY.with_(constraint=words)
    for _ in range(2):
        s = Sampler(params, 4, eog_ids=[1])
        assert [s.sample(ROW).token_id for _ in range(4)] == [2, 3, 3, 1]
    assert words.so_far == ()
    s = Sampler(params, 4)
    s.sample(ROW)
    twin = s.fork()
    assert [s.sample(ROW).token_id, twin.sample(np.array([1, 4, 2, 0], dtype=np.float32)).token_id] == [3, 0]
    assert [one.token_id for one in s.best(ROW, 4) if one.logprob > -np.inf] == [3]


@pytest.mark.parametrize("n", [40, 5000])
@pytest.mark.parametrize("options", [{}, {"temp": 0}, {"mirostat": 2}, {"typical_p": 0.5, "top_k": 0}])
def test_compiled_and_naive_choose_the_same_under_a_constraint(n, options):
    class Every:
        """Every k-th token, k growing from 1 with the step."""

        def __init__(self, k=1):
            self.k = k

        def allowed(self):
            return None if self.k == 1 else np.arange(n) % self.k == 0

        def accept(self, token):
            self.k += 1

        def fork(self):
            return Every(self.k)

    params = SamplingParams(seed=4, constraint=Every(), logit_bias={0: 2.0}, **options)
    compiled, naive = Sampler(params, n), NaiveSampler(params, n)
    row = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    for k in range(1, 30):
        token = compiled.sample(row).token_id
        assert token == naive.sample(row).token_id
        assert token % k == 0
        naive.mu = compiled.mu


def test_a_mask_of_any_layout_counts_and_what_it_hides_may_be_broken():
    class Odd:
        def allowed(self):
            return np.array([0, 9, 0, 9, 1, 9, 1, 9], dtype=bool)[::2]

        def accept(self, token): ...

        def fork(self):
            return self

    row = np.array([np.inf, np.nan, 1, 2], dtype=np.float32)
    assert Sampler(GREEDY.with_(constraint=Odd()), 4).sample(row).token_id == 3


def test_a_constraint_that_is_none():
    class Broken:
        def __init__(self, mask):
            self.mask = mask

        def allowed(self):
            return self.mask

        def accept(self, token): ...

        def fork(self):
            return self

    for mask, found in ((np.ones(3, bool), r"bool \[3\]"), (np.ones(4), "float64"), ([True] * 4, "a list")):
        with pytest.raises(UsageError, match=f"constraint Broken must allow .* not .*{found}"):
            Sampler(SamplingParams(constraint=Broken(mask)), 4).sample(ROW)
    with pytest.raises(LLMGenError, match="constraint"):
        Sampler(SamplingParams(constraint=Broken(np.zeros(4, bool))), 4).sample(ROW)
    with pytest.raises(UsageError, match=r"constraint must be None or an object with .* not a text"):
        SamplingParams(constraint="json")


def test_processors_see_the_tokens_and_change_logits_in_order():
    seen = []

    def flip(tokens, logits):
        seen.append(tokens.tolist())
        logits *= -1  # a copy: the caller's array stays
        return logits

    def doubled(tokens, logits):
        return logits * np.float64(2)

    before = ROW.copy()
    params = GREEDY.with_(processors=[flip, doubled], logprobs=1, logprobs_mode="processed")
    s = Sampler(params, 4, prompt_ids=[3, 1], eog_ids=[1])
    choice = s.sample(ROW)
    assert choice.token_id == 0
    assert choice.score.logprob == pytest.approx(-2 - np.log(np.exp(-2.0 * ROW).sum()), abs=1e-5)
    s.sample(ROW)
    assert seen == [[3, 1], [3, 1, 0]]
    assert np.array_equal(ROW, before)
    raw = Sampler(params.with_(logprobs_mode="raw"), 4).sample(ROW).score
    assert raw.top[0].token_id == 1
    assert Sampler(GREEDY.with_(processors=flip), 4).sample(ROW).token_id == 0  # one without a list
    assert SamplingParams(processors=[flip]) == SamplingParams(processors=(flip,))


@pytest.mark.parametrize(
    ("processor", "says"),
    [
        (lambda tokens, logits: None, "must return an array float32 .* not None"),
        (lambda tokens, logits: logits[:2], r"must return .* not an array float32 \[2\]"),
        (lambda tokens, logits: logits > 0, "must return .* not an array bool"),
        (lambda tokens, logits: logits * np.nan, "made logits that are NaN"),
        (lambda tokens, logits: logits + np.inf, r"\+inf"),
    ],
)
def test_what_a_processor_may_not_return(processor, says):
    with pytest.raises(UsageError, match=f"processor <lambda> .*{says}"):
        Sampler(SamplingParams(processors=processor), 4).sample(ROW)
    with pytest.raises(LLMGenError, match="the model's logits"):
        Sampler(SamplingParams(processors=lambda tokens, logits: logits), 2).sample(
            np.full(2, np.nan, np.float32)
        )
    with pytest.raises(UsageError, match="processors must be a function or a list of functions, not an int"):
        SamplingParams(processors=[1])


def test_sessions_and_beams_take_both():
    tokenizer = FakeTokenizer()
    words = Words([tuple(b"yes"), tuple(b"no")], tokenizer.n_vocab, EOG)
    params = SamplingParams(seed=1, constraint=words, max_tokens=9)
    for seed in range(6):
        assert Session(FakeModel(), tokenizer).generate("Well?", params.with_(seed=seed)).text in (
            "yes",
            "no",
        )

    def no_yes(tokens, logits):
        logits[ord("y")] = -np.inf
        return logits

    assert Session(FakeModel(), tokenizer).generate("Well?", params.with_(processors=no_yes)).text == "no"
    search = BeamSearch(FakeModel(), tokenizer, list(b"Well?"), params, BeamOptions(n_beams=2))
    assert {beam.result.text for beam in search.run()} == {"yes", "no"}


def test_an_exception_of_a_processor_ends_the_answer_only():
    def failing(tokens, logits):
        if len(tokens) > 7:
            raise ZeroDivisionError("its own")
        return logits

    session = Session(FakeModel(), FakeTokenizer())
    params = SamplingParams(temp=0, max_tokens=6)
    expected = session.generate("Well?", params).text
    with pytest.raises(ZeroDivisionError, match="its own"):
        session.generate("Well?", params.with_(processors=failing))
    assert session.generate("Well?", params).text == expected
