from __future__ import annotations

import math

import numpy as np
import pytest

from engine.fakes import FakeTokenizer
from llmgen.engine import Sampler, SamplingParams
from llmgen.errors import LLMGenError, UsageError
from naive.sampling.candidates import softmax
from naive.sampling.draws import uniforms
from vocabularies import spm

OPEN = SamplingParams(temp=1.0, top_k=0, top_p=1, min_p=0, seed=5)


def logits(*p):
    with np.errstate(divide="ignore"):
        return np.log(np.array(p, dtype=np.float32))


def distribution(params, row, **kw):
    """Probability of every token after all stages: float [n_vocab]."""
    c = Sampler(params, len(row), **kw).distribution(row)
    p = np.zeros(len(row))
    p[c.ids if c.ids is not None else np.arange(len(row))] = softmax(c.logits)
    return p


def test_default_chain_by_hand():
    # top_k 3 leaves .4 .3 .2; top_p .7 of .9: .4 is .444, .4+.3 is .778, enough; min_p .5: .3 >= .5 * .4;
    # temperature 0.5 squares: .16, .09
    row = logits(0.2, 0.4, 0.1, 0.3)
    params = SamplingParams(top_k=3, top_p=0.7, min_p=0.5, temp=0.5)
    np.testing.assert_allclose(distribution(params, row), [0, 0.64, 0, 0.36], rtol=1e-5)


def test_order_matters_and_can_be_set():
    row = logits(0.2, 0.4, 0.1, 0.3)
    late = SamplingParams(top_k=0, min_p=0, top_p=0.65, temp=0.25)
    np.testing.assert_allclose(np.count_nonzero(distribution(late, row)), 2)
    early = late.with_(samplers=("temperature", "top_p"))  # .0256 .0081 .0016 .0001: the first has 0.72
    np.testing.assert_allclose(distribution(early, row), [0, 1, 0, 0])
    without = late.with_(samplers=("top_p",))  # no temperature
    np.testing.assert_allclose(distribution(without, row), [0, 0.4 / 0.7, 0, 0.3 / 0.7], rtol=1e-5)


def test_penalties_see_prompt_and_answer():
    row = np.zeros(4, dtype=np.float32)
    params = OPEN.with_(presence_penalty=math.log(2), repeat_last_n=2)
    np.testing.assert_allclose(distribution(params, row, prompt_ids=[3, 0, 1]), [1 / 6, 1 / 6, 1 / 3, 1 / 3])
    s = Sampler(OPEN.with_(presence_penalty=1000), 3)
    assert sorted(s.sample(row[:3]).token_id for _ in range(3)) == [0, 1, 2]


@pytest.mark.parametrize(
    "options",
    [
        {"repeat_penalty": 4.0},
        {"presence_penalty": 4.0},
        {"frequency_penalty": 4.0},
        {"dry_multiplier": 4.0, "dry_allowed_length": 1, "dry_sequence_breakers": ()},
    ],
)
def test_what_ends_an_answer_is_never_penalized(options):
    """A conversation of turns that end with token 3; its template's other tokens count as any text."""
    row = np.zeros(300, dtype=np.float32)
    row[:4] = 2, 2, 2, 2.5
    turns = [0, 1, 3, 0, 1, 3, 0, 1]
    penalized = Sampler(OPEN.with_(temp=0.0, **options), 300, prompt_ids=turns)
    assert penalized.sample(row).token_id != 3
    kept = Sampler(OPEN.with_(temp=0.0, **options), 300, prompt_ids=turns, eog_ids=[3])
    assert kept.distribution(row).logits[3] == 2.5
    assert kept.sample(row).token_id == 3
    after = Sampler(
        OPEN.with_(temp=0.0, banned_tokens="ab"),
        260,
        tokenizer=FakeTokenizer(),
        prompt_ids=[97],
        eog_ids=[97],
    )
    assert after.distribution(np.zeros(260, np.float32)).logits[98] == -np.inf  # the ban still sees it


def test_greedy_ignores_filters_but_not_penalties_and_bias():
    row = logits(0.2, 0.4, 0.1, 0.3)
    idle = SamplingParams(temp=0, typical_p=0.01, xtc_probability=1, xtc_threshold=0, mirostat=2, top_k=1)
    assert Sampler(idle, 4).sample(row).token_id == 1
    assert Sampler(idle.with_(presence_penalty=5), 4, prompt_ids=[1]).sample(row).token_id == 3
    assert Sampler(idle.with_(logit_bias={2: 5}), 4).sample(row).token_id == 2
    assert Sampler(idle.with_(banned_tokens=(1, 3)), 4).sample(row).token_id == 0


def test_ties_go_to_the_lowest_id():
    row = np.array([1, 3, 3, 3], dtype=np.float32)
    assert Sampler(SamplingParams(temp=0), 4).sample(row).token_id == 1
    assert Sampler(SamplingParams(top_k=1), 4).sample(row).token_id == 1


def test_nan_masked_and_infinite_logits():
    greedy, random = SamplingParams(temp=0), SamplingParams(seed=1)
    for params in (greedy, random, OPEN, OPEN.with_(mirostat=1), OPEN.with_(mirostat=2)):
        with pytest.raises(LLMGenError, match="NaN"):
            Sampler(params, 3).sample(np.array([0, np.nan, 1], dtype=np.float32))
        with pytest.raises(LLMGenError, match="masked"):
            Sampler(params, 2).sample(np.full(2, -np.inf, dtype=np.float32))
        with pytest.raises(LLMGenError, match="masked"):
            Sampler(params.with_(banned_tokens=(0, 1)), 2).sample(np.zeros(2, dtype=np.float32))
        with pytest.raises(LLMGenError, match="infinite"):
            Sampler(params, 4).sample(np.array([0, np.inf, 1, -np.inf], dtype=np.float32))
        alone = np.array([-np.inf, -np.inf, 1], dtype=np.float32)
        assert Sampler(params, 3).sample(alone).token_id == 2


def test_edges_of_single_options():
    row = logits(0.2, 0.4, 0.1, 0.3)
    everything = distribution(OPEN, row)
    np.testing.assert_allclose(everything, [0.2, 0.4, 0.1, 0.3], rtol=1e-5)
    for same in (
        {"top_k": 4},
        {"top_k": 10**6},
        {"top_p": 1},
        {"min_p": 0},
        {"typical_p": 1},
        {"mirostat_tau": 9},
    ):
        np.testing.assert_allclose(distribution(OPEN.with_(**same), row), everything)
    for certain in ({"top_k": 1}, {"top_p": 0}, {"min_p": 1}, {"temp": 1e-30}):
        np.testing.assert_allclose(distribution(OPEN.with_(**certain), row), [0, 1, 0, 0])
    one = np.zeros(1, dtype=np.float32)
    for params in (OPEN, SamplingParams(), OPEN.with_(mirostat=1), OPEN.with_(xtc_probability=1.0)):
        assert Sampler(params, 1).sample(one).token_id == 0


def test_the_callers_array_is_left_alone():
    row = logits(0.2, 0.4, 0.1, 0.3)
    before = row.copy()
    params = SamplingParams(
        seed=1, repeat_penalty=1.5, logit_bias={0: 1}, banned_tokens=(1,), dry_multiplier=1, logprobs=2
    )
    Sampler(params, 4, prompt_ids=[0, 1, 2, 0, 1]).sample(row)
    np.testing.assert_array_equal(row, before)


def test_bias_and_bans_by_text():
    row = np.zeros(260, dtype=np.float32)
    tok = FakeTokenizer()
    p = distribution(OPEN.with_(logit_bias={"ab": math.log(2)}), row, tokenizer=tok)
    assert p[ord("a")] == pytest.approx(2 * p[0], rel=1e-5)
    assert p[ord("b")] == pytest.approx(2 * p[0], rel=1e-5)
    banned = OPEN.with_(banned_tokens=("ab",))
    assert distribution(banned, row, tokenizer=tok)[ord("b")] > 0
    assert distribution(banned, row, tokenizer=tok, prompt_ids=[ord("a")])[ord("b")] == 0
    with pytest.raises(UsageError, match="no tokenizer"):
        Sampler(banned, 260)
    with pytest.raises(UsageError, match="token 260"):
        Sampler(OPEN.with_(logit_bias={260: 1}), 260)


def test_a_text_to_ban_is_not_the_beginning_of_one():
    tok = spm("\u2581", "a", "\u2581a")  # a vocabulary that puts a space in front of texts
    assert tok.adds_space_prefix
    row = np.zeros(tok.n_vocab, dtype=np.float32)
    space, letter, word = tok.n_vocab - 3, tok.n_vocab - 2, tok.n_vocab - 1
    for params in (OPEN.with_(banned_tokens="a"), OPEN.with_(logit_bias={"a": -math.inf})):
        p = distribution(params, row, tokenizer=tok)
        assert (p[letter], p[space] > 0, p[word] > 0) == (0, True, True)
    p = distribution(OPEN.with_(banned_tokens=" a"), row, tokenizer=tok)
    assert (p[word], p[letter] > 0) == (0, True)


def test_ignore_eos_and_min_tokens():
    row = logits(0.1, 0.2, 0.7)
    p = distribution(OPEN.with_(ignore_eos=True), row, eog_ids={2, 99})
    np.testing.assert_allclose(p, [1 / 3, 2 / 3, 0], rtol=1e-5)
    s = Sampler(SamplingParams(temp=0, min_tokens=2, stop_token_ids=(1,)), 3, eog_ids={2})
    assert [s.sample(row).token_id for _ in range(3)] == [0, 0, 2]


def test_draws_follow_the_distribution():
    """Chi-squared on 10^5 draws, and the vectorized draws are those of the sampler."""
    row = (np.random.default_rng(0).standard_normal(50) * 2).astype(np.float32)
    params = SamplingParams(temp=1.3, top_k=20, top_p=0.97, min_p=0.01, seed=123)
    c = Sampler(params, 50).distribution(row)
    p = softmax(c.logits)
    draws = uniforms(123, np.arange(100_000, dtype=np.uint64))
    index = np.searchsorted(np.cumsum(p), draws * p.sum(), side="right")
    counts = np.bincount(index, minlength=len(p))
    chi2 = ((counts - p * 1e5) ** 2 / (p * 1e5)).sum()
    freedom = len(p) - 1
    assert chi2 < freedom + 4.5 * math.sqrt(2 * freedom)
    s = Sampler(params, 50)
    assert [s.sample(row).token_id for _ in range(200)] == [c.token(i) for i in index[:200]]


def test_dynamic_temperature_xtc_and_mirostat_in_the_chain():
    row = logits(0.9, 0.1)
    h = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1)) / math.log(2)
    expected = np.array([0.9, 0.1]) ** (1 / (0.5 + h))
    found = distribution(OPEN.with_(dynatemp_range=0.5), row)
    np.testing.assert_allclose(found, expected / expected.sum(), rtol=1e-5)
    xtc = OPEN.with_(xtc_probability=0.5, xtc_threshold=0.05)
    hits = [distribution(xtc.with_(seed=i), row)[0] == 0 for i in range(400)]
    assert 150 < sum(hits) < 250
    s = Sampler(OPEN.with_(mirostat=2, mirostat_tau=1.0, mirostat_eta=0.5), 2)
    chosen = s.sample(row).token_id
    seen = -math.log2([0.9, 0.1][chosen]) if chosen else 0.152
    assert s.mu == pytest.approx(2.0 - 0.5 * (seen - 1.0), abs=0.1)


def test_mirostat_holds_the_surprise():
    rng = np.random.default_rng(1)
    for version in (1, 2):
        s = Sampler(OPEN.with_(mirostat=version, mirostat_tau=3.0), 2000)
        observed = []
        for _ in range(400):
            row = -1.1 * np.log(np.arange(1, 2001)) + rng.standard_normal(2000) * 0.1
            before = s.mu
            s.sample(row.astype(np.float32))
            observed.append((before - s.mu) / 0.1 + 3.0)
        assert np.mean(observed[100:]) == pytest.approx(3.0, abs=0.2)


def test_logprobs_before_and_after():
    row = logits(0.2, 0.4, 0.1, 0.3)
    params = SamplingParams(temp=0, logprobs=2)
    score = Sampler(params, 4).sample(row).score
    assert score.token_id == 1
    assert score.logprob == pytest.approx(math.log(0.4), abs=1e-6)
    assert [t.token_id for t in score.top] == [1, 3]
    assert [t.logprob for t in score.top] == pytest.approx([math.log(0.4), math.log(0.3)], abs=1e-6)
    after = SamplingParams(temp=0.5, top_k=2, top_p=1, min_p=0, logprobs=4, logprobs_mode="processed", seed=1)
    score = Sampler(after, 4).sample(row).score
    assert [math.exp(t.logprob) for t in score.top] == pytest.approx([0.64, 0.36], abs=1e-5)
    raw = Sampler(after.with_(logprobs_mode="raw", logit_bias={0: 100}), 4).sample(row).score
    assert (raw.token_id, raw.logprob) == (0, pytest.approx(math.log(0.2), abs=1e-6))
    assert len(raw.top) == 4


def test_a_random_seed_is_reported():
    a, b = Sampler(SamplingParams(), 4), Sampler(SamplingParams(), 4)
    assert a.seed != b.seed
    assert 0 <= a.seed < 2**32
